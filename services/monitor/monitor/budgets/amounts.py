"""Amounts of the four kinds of budgets, and the usage of a sandbox by its last summary. Pure."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from sandherd.contracts.budgets import BudgetLimits
from sandherd.contracts.model import MAX_WHOLE
from sandherd.contracts.records import SandboxSummary, SummaryState

WALL_TIME_STATES: Final = frozenset({"running", "waiting"})
"""The states of a sandbox in which wall time is charged."""


class UsedByKind(NamedTuple):
    """Amounts by kind: micro-dollars, tokens, turns, seconds."""

    cost: int = 0
    tokens: int = 0
    turns: int = 0
    wall_time: int = 0

    def plus(self, other: "UsedByKind") -> "UsedByKind":
        """The sum of each kind, at most `MAX_WHOLE`, the largest number that a contract permits."""
        return UsedByKind(*(min(MAX_WHOLE, own + added) for own, added in zip(self, other, strict=True)))

    def greatest(self, other: "UsedByKind") -> "UsedByKind":
        """The greater amount of each kind."""
        return UsedByKind(*map(max, self, other))

    def beyond(self, other: "UsedByKind") -> "UsedByKind":
        """The amount of each kind by which this exceeds `other`; 0 if it does not."""
        return UsedByKind(*(max(0, own - subtracted) for own, subtracted in zip(self, other, strict=True)))


NOTHING: Final = UsedByKind()


@dataclass(frozen=True, slots=True)
class SandboxUse:
    """The usage of a sandbox, by its last summary."""

    project: str
    sandbox: str
    task: str | None
    state: SummaryState
    used: UsedByKind
    started_at: datetime
    updated_at: datetime
    sequence: int
    budget: BudgetLimits | None = None
    metered: bool = True
    """Whether the usage of all its turns was reported, with plausible numbers. True also before its first turn has
    ended."""
    priced: bool = True
    """As `metered`, for the cost."""

    @classmethod
    def of(cls, summary: SandboxSummary) -> "SandboxUse":
        """The usage that a summary states."""
        spending = summary.spending
        used = NOTHING.plus(
            UsedByKind(spending.cost_micro_usd, spending.tokens, summary.turns, int(spending.wall_seconds))
        )
        complete = spending.unmetered_turns == 0 and spending.implausible == 0
        unused = summary.turns == 0 and summary.state not in {"finished", "ended"}
        return cls(
            summary.project,
            summary.sandbox,
            summary.task,
            summary.state,
            used,
            summary.started_at,
            summary.updated_at,
            summary.sequence,
            summary.budget,
            metered=unused or (spending.metered and complete),
            priced=unused or (spending.priced and complete),
        )

    @property
    def is_live(self) -> bool:
        """Whether its agent may still use something."""
        return self.state not in {"finished", "ended"}

    def used_at(self, now: datetime) -> UsedByKind:
        """The usage at `now`. Wall time passes without events."""
        if self.state not in WALL_TIME_STATES:
            return self.used
        passed = max(0, int((now - self.updated_at).total_seconds()))
        return self.used.plus(UsedByKind(wall_time=passed))
