"""Ledgers of projects and tasks: usage, grants, and the limits that were reached. Pure.

A sandbox's summary has totals. A project is charged the increase since the last charge for that sandbox, so that
nothing is charged twice because of a repeated or older summary, or a restart. The usage of a task is the sum of the
greatest totals of its sandboxes.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from pydantic import AwareDatetime, BaseModel, ConfigDict

from monitor.budgets.amounts import NOTHING, WALL_TIME_STATES, SandboxUse, UsedByKind
from sandherd.contracts.budgets import BudgetLimits, WindowLimits
from sandherd.contracts.names import FLEET, SafeName
from sandherd.contracts.records import SummaryState

HOUR: Final = 3600
DAY_HOURS: Final = 24
MONTH_HOURS: Final = 30 * DAY_HOURS
STORED_HOURS: Final = 31 * DAY_HOURS
"""Number of hours for which hourly entries are stored."""
CHARGED_FOR: Final = 24 * HOUR
"""Seconds for which the charge of an ended sandbox is stored. After that, `closed_through` shows that it was
charged."""
MAX_CHARGED: Final = 4000
"""Maximum number of ended sandboxes whose charges are stored. They fit in a message even with the longest names."""
MAX_GRANTS: Final = 100
"""Maximum number of grants of a task, because its ledger has the names of all."""
WALL_STEP: Final = 60
"""Wall time is charged in steps of this many seconds while nothing else changes."""


class SandboxCharge(NamedTuple):
    """The usage that was charged for a sandbox.

    `ended` is the time when it was first known to have ended, in seconds since 1970, or 0. The end of its agent is not
    enough: the sandbox may linger for days, and `closed_through` would pass other sandboxes that are not charged yet.
    """

    used: UsedByKind
    sequence: int
    ended: int = 0


_NO_CHARGES: Final[Mapping[str, SandboxCharge]] = {}


class ReachedLimit(BaseModel):
    """A limit that was reached: when, with which usage, and whether the event about it was published."""

    model_config = ConfigDict(frozen=True)

    at: AwareDatetime
    limit: int
    used: int
    published: bool = False


class ProjectLedger(BaseModel):
    """The usage that was charged for the sandboxes of a project, by hour.

    The ledger with the name `fleet` has the limits and the marks of the herd.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    project: SafeName
    hours: dict[int, UsedByKind] = {}
    """The charged usage, by the number of the hour since 1970."""
    charged: dict[SafeName, SandboxCharge] = {}
    closed_through: int = 0
    """Ended sandboxes up to this stream sequence were charged, and are no longer in `charged`."""
    marks: dict[str, ReachedLimit] = {}
    limits: WindowLimits = WindowLimits()
    """The limits that an operator has set; they take precedence over the settings."""
    updated_by: str | None = None

    @property
    def key(self) -> str:
        """The key of the ledger in its bucket."""
        return f"{self.project}.{_PROJECT_LEDGER}"


class TaskLedger(BaseModel):
    """The usage and the grants of a task with a budget."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    project: SafeName
    task: SafeName
    sandboxes: dict[SafeName, UsedByKind] = {}
    budget: BudgetLimits | None = None
    granted: UsedByKind = NOTHING
    grants: tuple[str, ...] = ()
    """The names of the grants."""
    marks: dict[str, ReachedLimit] = {}

    @property
    def key(self) -> str:
        """The key of the ledger in its bucket."""
        return task_key(self.project, self.task)


_PROJECT_LEDGER: Final = "ledger"
BLOCKS_KEY: Final = f"{FLEET}.blocked"
"""The key of the record of projects in which no task may begin."""


def is_project_key(key: str) -> bool:
    """Whether this is the key of a project's ledger, or of the herd's."""
    return key.partition(".")[2] == _PROJECT_LEDGER


def task_key(project: str, task: str) -> str:
    """The key of a task's ledger."""
    return f"{project}.task.{task}"


def with_charges(ledger: ProjectLedger, uses: Iterable[SandboxUse], now: datetime) -> ProjectLedger:
    """The ledger after charging these sandboxes of the project; the same object if nothing changes."""
    hours, charges = dict(ledger.hours), dict(ledger.charged)
    for use in uses:
        charge = charges.get(use.sandbox)
        if charge is None and use.state == "ended" and use.sequence <= ledger.closed_through:
            continue
        charged_usage = charge.used if charge else NOTHING
        used = use.used_at(now).greatest(charged_usage)
        ended = ((charge.ended if charge else 0) or int(now.timestamp())) if use.state == "ended" else 0
        if charge and not _is_chargeable(use.state, used.beyond(charged_usage)) and ended == charge.ended:
            continue
        hour = _hour_of(use, now)
        hours[hour] = hours.get(hour, NOTHING).plus(used.beyond(charged_usage))
        charges[use.sandbox] = SandboxCharge(used, use.sequence, ended)
    return _prune(ledger, hours, charges, now)


def _is_chargeable(state: SummaryState, increase: UsedByKind) -> bool:
    """Whether a difference is large enough to be charged now.

    To charge each second of wall time would need too many writes.
    """
    return any(increase[:3]) or increase.wall_time >= (WALL_STEP if state in WALL_TIME_STATES else 1)


def _hour_of(use: SandboxUse, now: datetime) -> int:
    """The hour to which usage is charged: the current one while wall time passes, else the hour of the last event."""
    at = now if use.state in WALL_TIME_STATES else min(now, use.updated_at)
    return int(at.timestamp()) // HOUR


def _prune(
    ledger: ProjectLedger, hours: Mapping[int, UsedByKind], charges: Mapping[str, SandboxCharge], now: datetime
) -> ProjectLedger:
    oldest = int(now.timestamp()) // HOUR - STORED_HOURS
    recent = {hour: used for hour, used in hours.items() if hour > oldest}
    closed = closed_charges(charges, now)
    if recent == ledger.hours and charges == ledger.charged and not closed:
        return ledger
    last_sequence = max((charges[name].sequence for name in closed), default=0)
    remaining = {name: charge for name, charge in charges.items() if name not in closed}
    update = {"hours": recent, "charged": remaining, "closed_through": max(ledger.closed_through, last_sequence)}
    return ledger.model_copy(update=update)


def closed_charges(charges: Mapping[str, SandboxCharge], now: datetime) -> frozenset[str]:
    """The ended sandboxes whose charges need not be stored any more."""
    ended = sorted((charge.ended, name) for name, charge in charges.items() if charge.ended)
    oldest = now.timestamp() - CHARGED_FOR
    excess = max(0, len(ended) - MAX_CHARGED)
    return frozenset(name for position, (at, name) in enumerate(ended) if at < oldest or position < excess)


def used_since(hours: Mapping[int, UsedByKind], now: datetime, count: int) -> UsedByKind:
    """The usage in the last `count` hours, including the current one."""
    first = int(now.timestamp()) // HOUR - count
    total = NOTHING
    for hour, used in hours.items():
        if hour > first:
            total = total.plus(used)
    return total


def hourly_totals(ledgers: Iterable[ProjectLedger]) -> dict[int, UsedByKind]:
    """The usage of all projects together, by hour."""
    hours: dict[int, UsedByKind] = {}
    for ledger in ledgers:
        for hour, used in ledger.hours.items():
            hours[hour] = hours.get(hour, NOTHING).plus(used)
    return hours


def with_usage(
    ledger: TaskLedger, uses: Collection[SandboxUse], now: datetime, charges: Mapping[str, SandboxCharge] = _NO_CHARGES
) -> TaskLedger:
    """The ledger with the current usage of the task's sandboxes: at least the amounts that their project was charged.

    The totals of a sandbox never decrease, even if the monitor has missed some of its events.
    """
    sandboxes = dict(ledger.sandboxes)
    for use in uses:
        charge = charges.get(use.sandbox)
        known_usage = sandboxes.get(use.sandbox, NOTHING).greatest(charge.used if charge else NOTHING)
        sandboxes[use.sandbox] = use.used_at(now).greatest(known_usage)
    budget = next((use.budget for use in uses if use.budget is not None), ledger.budget)
    return ledger.model_copy(update={"sandboxes": sandboxes, "budget": budget})


def usage_of_task(ledger: TaskLedger) -> UsedByKind:
    """The usage of all attempts of a task."""
    total = NOTHING
    for used in ledger.sandboxes.values():
        total = total.plus(used)
    return total


def with_grant(ledger: TaskLedger, name: str, grant: BudgetLimits) -> TaskLedger:
    """The ledger with a grant; the same object if it has that grant already."""
    if name in ledger.grants:
        return ledger
    amounts = UsedByKind(grant.cost_micro_usd or 0, grant.tokens or 0, grant.turns or 0, grant.wall_seconds or 0)
    return ledger.model_copy(update={"granted": ledger.granted.plus(amounts), "grants": (*ledger.grants, name)})
