"""Amounts of the four kinds, and what a sandbox has used by its last summary. Pure."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from sandherd.contracts.budgets import BudgetLimits
from sandherd.contracts.model import MAX_WHOLE
from sandherd.contracts.records import SandboxSummary, SummaryState

ADVANCING: Final = frozenset({"running", "waiting"})
"""The states in which wall time passes."""


class UsedByKind(NamedTuple):
    """Amounts by kind: micro-dollars, tokens, turns, seconds."""

    cost: int = 0
    tokens: int = 0
    turns: int = 0
    wall_time: int = 0

    def plus(self, other: "UsedByKind") -> "UsedByKind":
        """The sums, at most what a contract can state."""
        return UsedByKind(*(min(MAX_WHOLE, mine + more) for mine, more in zip(self, other, strict=True)))

    def greatest(self, other: "UsedByKind") -> "UsedByKind":
        """The greater of each."""
        return UsedByKind(*map(max, self, other))

    def beyond(self, other: "UsedByKind") -> "UsedByKind":
        """How much more than `other`; never negative."""
        return UsedByKind(*(max(0, mine - less) for mine, less in zip(self, other, strict=True)))


NOTHING: Final = UsedByKind()


@dataclass(frozen=True, slots=True)
class SandboxUse:
    """What a sandbox has used, by its last summary."""

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
    """Whether it has reported tokens, or has ended no turn yet."""
    priced: bool = True

    @classmethod
    def of(cls, summary: SandboxSummary) -> "SandboxUse":
        """What a summary states."""
        spent = summary.spending
        used = NOTHING.plus(UsedByKind(spent.cost_micro_usd, spent.tokens, summary.turns, int(spent.wall_seconds)))
        complete = spent.unmetered_turns == 0 and spent.implausible == 0
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
            metered=unused or (spent.metered and complete),
            priced=unused or (spent.priced and complete),
        )

    @property
    def is_live(self) -> bool:
        """Whether its agent may still use something."""
        return self.state not in {"finished", "ended"}

    def used_at(self, now: datetime) -> UsedByKind:
        """What it has used at `now`: wall time passes without events."""
        if self.state not in ADVANCING:
            return self.used
        passed = max(0, int((now - self.updated_at).total_seconds()))
        return self.used.plus(UsedByKind(wall_time=passed))
