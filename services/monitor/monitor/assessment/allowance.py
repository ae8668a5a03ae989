"""The tokens that the model may use within a day, for all sandboxes that a monitor watches. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

DAY: Final = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class TokenAllowance:
    """Used tokens by the hour in which they were used."""

    used: Mapping[datetime, int] = field(default_factory=dict)

    def with_used(self, tokens: int, at: datetime) -> "TokenAllowance":
        """The allowance after an assessment that ended at `at`. Entries older than a day are dropped."""
        hour = at.replace(minute=0, second=0, microsecond=0)
        recent = {earlier: count for earlier, count in self.used.items() if hour - earlier < DAY}
        return TokenAllowance(recent | {hour: recent.get(hour, 0) + tokens})

    def is_spent(self, limit: int, now: datetime) -> bool:
        """Whether the last 24 hours used `limit` tokens or more."""
        return sum(count for hour, count in self.used.items() if now - hour < DAY) >= limit
