"""What a conversation has used since it was last asked. Money is integer micro-USD, and never counted twice."""

from dataclasses import dataclass, field
from typing import Any, Final

MILLION: Final = 1_000_000


@dataclass(frozen=True)
class Totals:
    """A conversation's figures from its beginning, in all its models together."""

    cost_usd: float = 0.0
    prompt_tokens: int = 0
    """With what was read from a cache or written to it."""
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def counted(self) -> dict[str, int]:
        """As `agent.usage` has them: input is what was neither read from a cache nor written to it."""
        cached = self.cache_read_tokens + self.cache_write_tokens
        return {
            "input_tokens": max(self.prompt_tokens - cached, 0),
            "output_tokens": self.output_tokens,
            "cache_read_tokens": self.cache_read_tokens,
            "cache_write_tokens": self.cache_write_tokens,
            "cost_micro_usd": round(self.cost_usd * MILLION),
        }


@dataclass
class Meter:
    """Tells differences of totals. It begins at what a session that is gone on with has used before."""

    began: Totals = field(default_factory=Totals)
    _told: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self._told = self.began.counted()

    def difference(self, totals: Totals) -> dict[str, Any] | None:
        """What was used since the last time, or since the beginning; None if that is nothing."""
        now = totals.counted()
        difference = {name: max(figure - self._told[name], 0) for name, figure in now.items()}
        self._told = {name: max(figure, self._told[name]) for name, figure in now.items()}
        return difference if any(difference.values()) else None
