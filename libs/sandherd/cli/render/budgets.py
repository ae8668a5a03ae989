"""Limits and what was used of them, as rows of a table."""

from collections.abc import Iterable, Sequence
from typing import Final

from sandherd.cli.render.table import Column
from sandherd.contracts.budgets import amount_text
from sandherd.contracts.requests import BudgetLine

HEADER: Final = ("SCOPE", "NAME", "WINDOW", "BUDGET", "USED", "LIMIT", "SHARE", Column("GRANTED", 1), "STATE")


def rows(lines: Iterable[BudgetLine]) -> list[Sequence[object]]:
    """A row of each limit."""
    return [_row(line) for line in lines]


def _row(line: BudgetLine) -> Sequence[object]:
    def text(amount: int | None) -> str | None:
        return None if amount is None else amount_text(line.budget, amount)

    used = f"{text(line.used)}{'' if line.metered else '+'}" if line.used or line.metered else "unmetered"
    state = "exceeded" if line.exceeded_at else "warned" if line.warned_at else None
    share = None if line.share is None else f"{line.share:.0%}{'' if line.metered else '+'}"
    granted = text(line.granted) if line.granted else None
    name = line.task or line.project or "herd"
    return (line.scope, name, line.window, line.budget, used, text(line.limit), share, granted, state)
