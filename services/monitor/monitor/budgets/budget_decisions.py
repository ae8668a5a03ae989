"""Determines the limits that are reached, and the actions that follow. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from monitor.budgets.amounts import SandboxUse, UsedByKind
from monitor.budgets.budget_ledger import DAY_HOURS, MONTH_HOURS, ReachedLimit, TaskLedger, usage_of_task, used_since
from sandherd.contracts.budgets import (
    FIELDS,
    BudgetKind,
    BudgetLimits,
    BudgetScope,
    BudgetWindow,
    WindowLimits,
    amount_text,
)
from sandherd.contracts.durations import duration_text
from sandherd.contracts.model import MAX_WHOLE
from sandherd.contracts.requests import BudgetLine

WARNED: Final = "warned"
EXCEEDED: Final = "exceeded"
_LEVELS: Final = {WARNED: (80, 70), EXCEEDED: (100, 100)}
"""The percentage of a limit from which a mark is set, and the percentage below which it is removed. A mark is removed
because the usage in a rolling window may fall, and reach the limit again."""
REPEAT_STOP: Final = 30.0
"""Seconds after which the end of a sandbox that has not ended is requested again."""
_WINDOWS: Final[tuple[tuple[BudgetWindow, int], ...]] = (("day", DAY_HOURS), ("month", MONTH_HOURS))


@dataclass(frozen=True, slots=True)
class BudgetLimit:
    """A limit and its usage."""

    scope: BudgetScope
    project: str | None
    task: str | None
    window: BudgetWindow
    kind: BudgetKind
    limit: int | None
    used: int
    granted: int = 0
    metered: bool = True

    @property
    def name(self) -> str:
        """The name of the limit within its ledger."""
        return f"{self.window}.{self.kind}"

    def reaches(self, percent: int) -> bool:
        """Whether the usage has reached this percentage of the limit."""
        return self.limit is not None and self.used * 100 >= self.limit * percent


def limits_of_task(ledger: TaskLedger, uses: Collection[SandboxUse], defaults: BudgetLimits) -> Iterator[BudgetLimit]:
    """The limits of a task: its own limits, or else `defaults`, plus its grants."""
    used = usage_of_task(ledger)
    for kind in FIELDS:
        task_limit = ledger.budget.of(kind) if ledger.budget else None
        base = defaults.of(kind) if task_limit is None else task_limit
        granted = getattr(ledger.granted, kind)
        limit = None if base is None else min(MAX_WHOLE, base + granted)
        metered = is_metered(kind, uses)
        yield BudgetLimit(
            "task", ledger.project, ledger.task, "total", kind, limit, getattr(used, kind), granted, metered=metered
        )


def limits_of_windows(
    project: str | None,
    hours: Mapping[int, UsedByKind],
    by_precedence: Iterable[WindowLimits],
    now: datetime,
    uses: Collection[SandboxUse] = (),
) -> Iterator[BudgetLimit]:
    """The limits of a project, or of the herd. For each kind, the first limit in `by_precedence` counts."""
    scope: BudgetScope = "herd" if project is None else "project"
    window_limits = list(by_precedence)
    for window, count in _WINDOWS:
        used = used_since(hours, now, count)
        for kind in FIELDS:
            limits = (getattr(candidate, window).of(kind) for candidate in window_limits)
            limit = next((limit for limit in limits if limit is not None), None)
            metered = is_metered(kind, uses)
            yield BudgetLimit(scope, project, None, window, kind, limit, getattr(used, kind), metered=metered)


def is_metered(kind: BudgetKind, uses: Iterable[SandboxUse]) -> bool:
    """Whether all of these sandboxes report their usage of this kind."""
    if kind == "cost":
        return all(use.priced for use in uses)
    return kind != "tokens" or all(use.metered for use in uses)


def updated_marks(
    marks: Mapping[str, ReachedLimit], limits: Iterable[BudgetLimit], now: datetime
) -> Mapping[str, ReachedLimit]:
    """The marks for the current usage; the same object if nothing changes.

    A mark is set once for a limit. It is removed when the limit is no longer reached, because it was raised or its
    window has moved. If the limit is reached again, a new mark is set. A limit whose usage goes from below the warning
    to exceeded causes no warning.
    """
    updated: dict[str, ReachedLimit] = {}
    for limit in limits:
        exceeded, warned = _updated_mark(marks, limit, EXCEEDED, now), _updated_mark(marks, limit, WARNED, now)
        if exceeded is not None:
            updated[f"{limit.name}.{EXCEEDED}"] = exceeded
            warned = warned and warned.model_copy(update={"published": True})
        if warned is not None:
            updated[f"{limit.name}.{WARNED}"] = warned
    return marks if updated == marks else updated


def _updated_mark(
    marks: Mapping[str, ReachedLimit], limit: BudgetLimit, level: str, now: datetime
) -> ReachedLimit | None:
    percent, removal_percent = _LEVELS[level]
    existing = marks.get(f"{limit.name}.{level}")
    if existing is not None and existing.limit == limit.limit and limit.reaches(removal_percent):
        return existing
    if limit.limit is None or not limit.reaches(percent):
        return None
    if existing is not None and level == EXCEEDED:
        return existing.model_copy(update={"limit": limit.limit})  # the limit was changed, and is still exceeded
    return ReachedLimit(at=now, limit=limit.limit, used=limit.used)


def exceeded_since(marks: Mapping[str, ReachedLimit]) -> datetime | None:
    """The time since which a limit is exceeded; None if none is."""
    return min((mark.at for name, mark in marks.items() if name.endswith(f".{EXCEEDED}")), default=None)


def previous_stops(use: SandboxUse, since: datetime, grace: float, now: datetime) -> int | None:
    """The number of times that the end of a sandbox was requested before, if it is due now; else None."""
    overdue_seconds = (now - max(since, use.started_at)).total_seconds() - grace
    return int(overdue_seconds / REPEAT_STOP) if overdue_seconds >= 0 else None


def block_of(limits: Iterable[BudgetLimit]) -> str | None:
    """The reason why no task may begin, as text; None if tasks may begin."""
    reached = next((limit for limit in limits if limit.reaches(100)), None)
    return None if reached is None else text_of(reached)


def text_of(limit: BudgetLimit) -> str:
    """A limit and its usage, in a sentence."""
    owner = {"herd": "the herd", "project": f"project {limit.project}", "task": "this task"}[limit.scope]
    window = "" if limit.window == "total" else f" of a {limit.window}"
    return (
        f"{owner} has used {amount_text(limit.kind, limit.used)} of {amount_text(limit.kind, limit.limit or 0)}{window}"
    )


def line_of(limit: BudgetLimit, marks: Mapping[str, ReachedLimit]) -> BudgetLine:
    """A limit as it is shown to users."""
    warned, exceeded = (marks.get(f"{limit.name}.{level}") for level in (WARNED, EXCEEDED))
    return BudgetLine(
        scope=limit.scope,
        project=limit.project,
        task=limit.task,
        window=limit.window,
        budget=limit.kind,
        limit=limit.limit,
        used=limit.used,
        share=round(limit.used / limit.limit, 4) if limit.limit else None,
        granted=limit.granted,
        metered=limit.metered,
        warned_at=warned.at if warned else None,
        exceeded_at=exceeded.at if exceeded else None,
    )


def wrap_up_text(limit: BudgetLimit, grace: float) -> str:
    """The message to an agent whose budget is used up."""
    return (
        f"The budget is used up: {text_of(limit)}. End your work now: bring the files into a state that can be "
        "continued from, state what is done and what is left, and stop. "
        f"This sandbox is ended in {duration_text(grace)}."
    )
