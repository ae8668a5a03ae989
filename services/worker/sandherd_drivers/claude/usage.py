"""The cost of a turn: differences between totals, which the SDK accumulates over a session and all its resumptions.

Totals are rounded before they are subtracted, so that nothing is lost or charged twice by rounding each turn.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_SDK_FIELDS: Final = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cache_read_tokens": "cacheReadInputTokens",
    "cache_write_tokens": "cacheCreationInputTokens",
}
_API_FIELDS: Final = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_tokens": "cache_read_input_tokens",
    "cache_write_tokens": "cache_creation_input_tokens",
}
_COST_FIELD: Final = "cost_micro_usd"


def micro_usd(dollars: Any) -> int:
    """Dollars as whole micro-USD."""
    return round(float(dollars or 0) * 1_000_000)


@dataclass
class SessionUsage:
    """The totals that have been charged: of the session, and of each of its models."""

    total: int = 0
    _models: dict[str, dict[str, int]] = field(default_factory=dict)
    _responses: dict[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    """The usage of each response of the model since the last totals."""

    @classmethod
    def resumed(cls, dollars: float, models: Mapping[str, Any]) -> "SessionUsage":
        """A resumed session with these totals, which have been charged before."""
        return cls(micro_usd(dollars), {model: _counts(usage) for model, usage in models.items()})

    def record_response(self, message_id: str | None, model: str, usage: Mapping[str, Any] | None) -> None:
        """Record the usage of a response of the model, for a turn that ends without totals."""
        if usage:
            self._responses[message_id or ""] = (model, usage)

    def charge_without_totals(self) -> list[dict[str, Any]]:
        """The tokens of a turn that was cut off, for each model. Its cost is unknown."""
        charges: dict[str, dict[str, Any]] = {}
        for model, usage in self._responses.values():
            charge = charges.setdefault(model, {"model": model, **dict.fromkeys(_API_FIELDS, 0)})
            for field_name, sdk_name in _API_FIELDS.items():
                charge[field_name] += int(usage.get(sdk_name) or 0)
        self._responses.clear()
        return list(charges.values())

    def charge(self, dollars: float | None, models: Mapping[str, Any] | None) -> list[dict[str, Any]]:
        """The difference to the last totals, for each model. If a total is below the last one, it restarted from 0.

        The part of the session's cost that belongs to no model is added to the first charge.
        """
        self._responses.clear()
        charges = [charge for model, usage in (models or {}).items() if (charge := self._charge(model, _counts(usage)))]
        remainder = self._total_difference(dollars) - sum(charge[_COST_FIELD] for charge in charges)
        if charges:
            charges[0][_COST_FIELD] = max(0, charges[0][_COST_FIELD] + remainder)
        elif remainder > 0:
            charges.append({"model": None, _COST_FIELD: remainder})
        return charges

    def _charge(self, model: str, current: dict[str, int]) -> dict[str, Any]:
        earlier = self._models.get(model, {})
        self._models[model] = current
        if any(current[key] < earlier.get(key, 0) for key in current):
            earlier = {}
        difference = {key: current[key] - earlier.get(key, 0) for key in current}
        return {"model": model, **difference} if any(difference.values()) else {}

    def _total_difference(self, dollars: float | None) -> int:
        if dollars is None:
            return 0
        earlier, self.total = self.total, micro_usd(dollars)
        return self.total - earlier if self.total >= earlier else self.total


def _counts(usage: Mapping[str, Any]) -> dict[str, int]:
    counts = {field_name: int(usage.get(sdk_name) or 0) for field_name, sdk_name in _SDK_FIELDS.items()}
    return {**counts, _COST_FIELD: micro_usd(usage.get("costUSD"))}
