"""Budgets: what tasks, projects and the herd may use, as limits of four kinds.

A limit may be written as text: `2usd` or `0.5usd`, `500k` or `2m` tokens, `50` turns, `90m` or `2h` of wall time.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, model_validator

from sandherd.contracts.durations import UNIT_SECONDS, duration_text
from sandherd.contracts.model import MAX_WHOLE, Model, Number

BudgetKind = Literal["cost", "tokens", "turns", "wall_time"]
BudgetScope = Literal["task", "project", "herd"]
BudgetWindow = Literal["total", "day", "month"]
FIELDS: Final[Mapping[BudgetKind, str]] = {
    "cost": "cost_micro_usd",
    "tokens": "tokens",
    "turns": "turns",
    "wall_time": "wall_seconds",
}
"""The field of `BudgetLimits` for each kind."""
_AMOUNT: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([a-z]*)")
_UNITS: Final[Mapping[BudgetKind, Mapping[str, int]]] = {
    "cost": {"usd": 1_000_000},
    "tokens": {"": 1, "k": 1000, "m": 1_000_000, "b": 1_000_000_000},
    "turns": {"": 1},
    "wall_time": UNIT_SECONDS,
}
_EXAMPLES: Final[Mapping[BudgetKind, str]] = {
    "cost": "2usd or 0.50usd",
    "tokens": "500k or 2m",
    "turns": "50",
    "wall_time": "90m, 2h or 1d",
}


def _is_absent(value: Any) -> bool:
    return value is None


def amount_of(kind: BudgetKind, text: str) -> int:
    """The amount in a text such as `2usd`, in the unit of its field.

    Raises `ValueError` if the text is invalid. The error does not contain the text, which may be a secret.
    """
    found = _AMOUNT.fullmatch(text.strip().lower())
    factor = _UNITS[kind].get(found[2]) if found else None
    value = Decimal(found[1]) * factor if found and factor else Decimal(0)
    if not 1 <= value <= MAX_WHOLE or value != int(value):
        raise ValueError(f"the amount of {kind} is invalid: write {_EXAMPLES[kind]}")
    return int(value)


def amount_text(kind: BudgetKind, amount: int) -> str:
    """An amount as text, with its unit."""
    if kind == "cost":
        return f"{amount / 1e6:.2f} USD"
    return duration_text(amount) if kind == "wall_time" else f"{amount} {kind}"


def limits_from(text: str) -> dict[str, int]:
    """The fields of `BudgetLimits` from a list such as `cost=2usd,tokens=500k`.

    Raises `ValueError` if the list is invalid. The error does not contain the text, which may be a secret.
    """
    found: dict[str, int] = {}
    for item in text.split(","):
        name, equals, amount = item.strip().partition("=")
        kind = next((kind for kind in FIELDS if kind == name), None)
        if kind is None or not equals:
            raise ValueError(f"an item is not a limit: write {', '.join(f'{kind}=…' for kind in FIELDS)}")
        found[FIELDS[kind]] = amount_of(kind, amount)
    return found


class BudgetLimits(Model):
    """How much may be used. A kind without a limit is not limited."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cost_micro_usd: Annotated[Number, Field(description="Money in millionths of a US dollar.")] | None = Field(
        default=None, exclude_if=_is_absent
    )
    tokens: Number | None = Field(default=None, exclude_if=_is_absent)
    """All tokens: of input and output, read from a cache and written to it."""
    turns: Number | None = Field(default=None, exclude_if=_is_absent)
    wall_seconds: Number | None = Field(default=None, exclude_if=_is_absent)
    """How long agents work, without pauses. The times of agents that work at the same time are added up."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        """Accept a list such as `cost=2usd,tokens=500k`, or a mapping of kinds to amounts as text."""
        if isinstance(value, str):
            return limits_from(value)
        if isinstance(value, Mapping):
            return dict(_field(str(name), amount) for name, amount in value.items())
        return value

    def of(self, kind: BudgetKind) -> int | None:
        """The limit of this kind; None if the kind is not limited."""
        limit: int | None = getattr(self, FIELDS[kind])
        return limit


def _field(name: str, value: Any) -> tuple[str, Any]:
    """The field of a kind such as `cost`, and the amount as a number. The name of a field is returned unchanged.

    Raises `ValueError` if the amount is an invalid text.
    """
    kind = next((kind for kind in FIELDS if kind == name), None)
    if kind is None:
        return name, value
    return FIELDS[kind], amount_of(kind, value) if isinstance(value, str) else value


class WindowLimits(Model):
    """Limits of a rolling day and a rolling month (30 days)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    day: BudgetLimits = BudgetLimits()
    month: BudgetLimits = BudgetLimits()


class HerdBudgets(Model):
    """The budgets in the settings: of the herd, of each project, and of each task without a budget of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    herd: WindowLimits = WindowLimits()
    project: WindowLimits = WindowLimits()
    task: BudgetLimits = BudgetLimits()

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        """Accept a list such as `task.cost=5usd,project.day.cost=50usd,herd.month.cost=2000usd`."""
        if not isinstance(value, str):
            return value
        found: dict[str, Any] = {}
        for number, item in enumerate(filter(None, (item.strip() for item in value.split(","))), 1):
            place, _, amount = item.partition("=")
            *path, kind = place.split(".")
            target = found
            for part in path:
                target = target.setdefault(part, {})
                if not isinstance(target, dict):
                    raise ValueError(f"item {number} is not a budget")  # noqa: TRY004  # for pydantic
            target[kind] = amount
        return found
