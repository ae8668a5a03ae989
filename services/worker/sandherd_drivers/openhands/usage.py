"""The usage of a conversation since the last report. Cost is in integer micro-USD, and never counted twice."""

from dataclasses import dataclass, field
from typing import Any, Final

MILLION: Final = 1_000_000


@dataclass(frozen=True)
class ConversationTotals:
    """A conversation's totals from its beginning, over all its models."""

    cost_usd: float = 0.0
    prompt_tokens: int = 0
    """Includes tokens read from a cache or written to it."""
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def event_fields(self) -> dict[str, int]:
        """The fields of `agent.usage`: input excludes tokens read from a cache or written to it."""
        cached = self.cache_read_tokens + self.cache_write_tokens
        return {
            "input_tokens": max(self.prompt_tokens - cached, 0),
            "output_tokens": self.output_tokens,
            "cache_read_tokens": self.cache_read_tokens,
            "cache_write_tokens": self.cache_write_tokens,
            "cost_micro_usd": round(self.cost_usd * MILLION),
        }


@dataclass
class UsageMeter:
    """Computes differences between totals. `baseline` is the earlier usage of a resumed session."""

    baseline: ConversationTotals = field(default_factory=ConversationTotals)
    _reported: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self._reported = self.baseline.event_fields()

    def difference(self, totals: ConversationTotals) -> dict[str, Any] | None:
        """The usage since the last call, or since the beginning; None without usage."""
        current = totals.event_fields()
        difference = {name: max(value - self._reported[name], 0) for name, value in current.items()}
        self._reported = {name: max(value, self._reported[name]) for name, value in current.items()}
        return difference if any(difference.values()) else None
