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
_WIRE: Final = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_tokens": "cache_read_input_tokens",
    "cache_write_tokens": "cache_creation_input_tokens",
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
    _answers: dict[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    """What each answer of the model has said of itself since the last totals."""

    @classmethod
    def since(cls, dollars: float, models: Mapping[str, Any]) -> "Spending":
        """A session that goes on from such totals, which somebody has been charged for."""
        return cls(micro_usd(dollars), {name: _figures(usage) for name, usage in models.items()})

    def answered(self, answer: str | None, model: str, usage: Mapping[str, Any] | None) -> None:
        """The model has answered, and there are no totals yet."""
        if usage:
            self._answers[answer or ""] = (model, usage)

    def without_totals(self) -> list[dict[str, Any]]:
        """The tokens of a turn that broke off, for each model. Its price nobody knows."""
        charges: dict[str, dict[str, Any]] = {}
        for model, usage in self._answers.values():
            charge = charges.setdefault(model, {"model": model, **dict.fromkeys(_WIRE, 0)})
            for ours, theirs in _WIRE.items():
                charge[ours] += int(usage.get(theirs) or 0)
        self._answers.clear()
        return list(charges.values())

    def charge(self, dollars: float | None, models: Mapping[str, Any] | None) -> list[dict[str, Any]]:
        """What has come on top, for each model. A total that has become smaller was begun anew."""
        self._answers.clear()
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
