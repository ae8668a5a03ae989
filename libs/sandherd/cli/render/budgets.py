"""Shows budgets and their use as rows of a table."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final

from sandherd.cli.render.console import UNMETERED
from sandherd.cli.render.durations import span
from sandherd.cli.render.table import Column
from sandherd.contracts.budgets import BudgetKind, amount_text
from sandherd.contracts.requests import BudgetLine
from sandherd.plurals import pluralize

HEADER: Final = ("SCOPE", "NAME", "WINDOW", "BUDGET", "USED", "LIMIT", "SHARE", Column("GRANTED", 1), "STATE")
_SCALES: Final = ((1_000_000_000, "b"), (1_000_000, "m"), (1000, "k"))
"""Units of numbers of tokens, as users type them."""
_MIN_SCALED_TOKENS: Final = 10_000
"""The smallest number of tokens that is shown with a unit."""


def rows(lines: Iterable[BudgetLine]) -> list[Sequence[object]]:
    """The rows of the table, one for each limit."""
    return [_row(line) for line in lines]


def _row(line: BudgetLine) -> Sequence[object]:
    def text(amount: int | None) -> str | None:
        return None if amount is None else amount_in_table(line.budget, amount)

    # A `+` means that more was used, because not every harness reports its usage.
    used_text = f"{text(line.used)}{'' if line.metered else '+'}" if line.used or line.metered else UNMETERED
    state = "exceeded" if line.exceeded_at else "warned" if line.warned_at else None
    share = None if line.share is None else f"{line.share:.0%}{'' if line.metered else '+'}"
    granted = text(line.granted) if line.granted else None
    name = line.task or line.project or "herd"
    return (line.scope, name, line.window, line.budget, used_text, text(line.limit), share, granted, state)


def amount_in_table(kind: BudgetKind, amount: int) -> str:
    """An amount as users type it: `900m tokens`, `1 turn`, `3m 30s`. Tokens are rounded to four digits. Pure."""
    if kind == "wall_time":
        return span(timedelta(seconds=amount)).removesuffix(" 0s")
    if kind == "turns":
        return pluralize(amount, "turn")
    return f"{_scaled(amount)} token{'' if amount == 1 else 's'}" if kind == "tokens" else amount_text(kind, amount)


def _scaled(number: int) -> str:
    """A number rounded to four digits, in the largest unit that is not larger than the number."""
    if number < _MIN_SCALED_TOKENS:
        return str(number)
    unit, letter = next((unit, letter) for unit, letter in _SCALES if number >= unit)
    return f"{round(number / unit, 0 if number >= 1000 * unit else 1):,.12g}{letter}"
