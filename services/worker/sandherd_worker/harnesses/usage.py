"""What an agent has used, from what is said of its turns."""

from typing import Final

from sandherd.contracts.events import EventData
from sandherd.contracts.events.agent import AgentUsage
from sandherd.contracts.quantities import MAX_WHOLE

_COUNTED: Final = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cost_micro_usd")


class Used:
    """Sums: each event says the difference since the last."""

    def __init__(self) -> None:
        self.totals = dict.fromkeys(_COUNTED, 0)
        """By the names that the end of an attempt has for them."""

    def count(self, data: EventData) -> None:
        """Add it, if it is one that tells of usage."""
        if isinstance(data, AgentUsage):
            for name in _COUNTED:
                self.totals[name] = min(MAX_WHOLE, self.totals[name] + getattr(data, name))
