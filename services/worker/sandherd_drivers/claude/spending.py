"""What a turn has cost: the differences between totals, which the SDK counts up over a session and all its resumptions.

Totals are rounded before they are subtracted, so that nothing is lost or charged twice by rounding each turn.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_TOKENS: Final = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cache_read_tokens": "cacheReadInputTokens",
    "cache_write_tokens": "cacheCreationInputTokens",
}
_COST: Final = "cost_micro_usd"


def micro_usd(dollars: Any) -> int:
    """Dollars as whole millionths."""
    return round(float(dollars or 0) * 1_000_000)


@dataclass
class Spending:
    """The totals that have been charged: of the session, and of each model in it."""

    total: int = 0
    _models: dict[str, dict[str, int]] = field(default_factory=dict)

    @classmethod
    def since(cls, dollars: float, models: Mapping[str, Any]) -> "Spending":
        """A session that goes on from such totals, which somebody has been charged for."""
        return cls(micro_usd(dollars), {name: _figures(usage) for name, usage in models.items()})

    def charge(self, dollars: float | None, models: Mapping[str, Any] | None) -> list[dict[str, Any]]:
        """What has come on top, for each model. A total that has become smaller was begun anew."""
        charges = [charge for name, usage in (models or {}).items() if (charge := self._charge(name, _figures(usage)))]
        rest = self._total_difference(dollars) - sum(charge[_COST] for charge in charges)
        if charges:
            charges[0][_COST] = max(0, charges[0][_COST] + rest)
        elif rest > 0:
            charges.append({"model": None, _COST: rest})
        return charges

    def _charge(self, name: str, now: dict[str, int]) -> dict[str, Any]:
        before = self._models.get(name, {})
        self._models[name] = now
        if any(now[key] < before.get(key, 0) for key in now):
            before = {}
        difference = {key: now[key] - before.get(key, 0) for key in now}
        return {"model": name, **difference} if any(difference.values()) else {}

    def _total_difference(self, dollars: float | None) -> int:
        if dollars is None:
            return 0
        before, self.total = self.total, micro_usd(dollars)
        return self.total - before if self.total >= before else self.total


def _figures(usage: Mapping[str, Any]) -> dict[str, int]:
    figures = {ours: int(usage.get(theirs) or 0) for ours, theirs in _TOKENS.items()}
    return {**figures, _COST: micro_usd(usage.get("costUSD"))}
