"""The sweep: what a pass over all records, and over all that is really there, finds to be done. Pure decisions."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sandherd.contracts.requests import SandboxView, TaskView
from sandherd.contracts.states import SANDBOX_ENDED, TASK_ENDED, SandboxState, TaskState
from spawner.records.known import Known
from spawner.runtimes.contract import Seen

_MADE: Final = frozenset({SandboxState.SPAWNING, SandboxState.RUNNING, SandboxState.PAUSED})


@dataclass(frozen=True)
class Findings:
    """What a pass found."""

    wake: frozenset[str]
    """Sandboxes to be led on, by key."""
    strays: frozenset[str]
    """Tasks whose sandbox has no record, by key."""
    orphans: frozenset[str]
    """What is there and no record wants, by name."""
    old_tasks: frozenset[str]
    old_sandboxes: frozenset[str]
    """Records that have been kept long enough, by key."""
    expired_secrets: frozenset[str] = frozenset()
    """Tasks whose secrets were stored for a retry long enough, by key."""


def look_over(
    tasks: Mapping[str, Known[TaskView]],
    sandboxes: Mapping[str, Known[SandboxView]],
    present: Iterable[Seen],
    now: datetime,
    *,
    keep: float,
    kept: AbstractSet[str] = frozenset(),
    pooled: AbstractSet[str] = frozenset(),
) -> Findings:
    """Compare the records with each other and with what is there. `keep` is in seconds.

    `kept` are the sandboxes that were put aside: their records stay, for they are to be tried again.
    `pooled` are the units that nobody has claimed yet.
    """
    names = units(sandboxes)
    there = {seen.unit for seen in present}
    living = {key for key, known in sandboxes.items() if known.view.state not in SANDBOX_ENDED}
    left_behind = {names[name] for name in there if name in names} - living
    needed = living | {names[name] for name in there | kept if name in names}
    awaited = {f"{known.view.project}.{name}" for known in tasks.values() for name in _waits_for(known.view)}
    unfinished = {_sandbox_of(known.view) for known in tasks.values() if _waits_for_sandbox(known.view)}
    return Findings(
        wake=frozenset(living | left_behind | (unfinished & sandboxes.keys())),
        strays=frozenset(
            key
            for key, known in tasks.items()
            if _waits_for_sandbox(known.view) and _sandbox_of(known.view) not in sandboxes
        ),
        orphans=frozenset(there - names.keys() - pooled),
        old_tasks=frozenset(
            key
            for key, known in tasks.items()
            if known.view.state in TASK_ENDED
            and _old(known.view.ended_at, known, now, keep)
            and _sandbox_of(known.view) not in needed
            and key not in awaited
        ),
        old_sandboxes=frozenset(
            key
            for key, known in sandboxes.items()
            if known.view.state in SANDBOX_ENDED and _old(known.view.ended_at, known, now, keep) and key not in needed
        ),
        expired_secrets=frozenset(
            key for key, known in tasks.items() if known.view.secrets_until and known.view.secrets_until <= now
        ),
    )


def units(sandboxes: Mapping[str, Known[SandboxView]]) -> dict[str, str]:
    """The key of each record, by what its runtime knows it by."""
    return {known.alias or known.view.sandbox: key for key, known in sandboxes.items()}


def lost(sandboxes: Mapping[str, Known[SandboxView]], present: AbstractSet[str]) -> frozenset[str]:
    """The sandboxes that were made and have not ended, by key, and that are not there."""
    return frozenset(
        key for unit, key in units(sandboxes).items() if sandboxes[key].view.state in _MADE and unit not in present
    )


def unsaid(*indexed: Mapping[str, Known[TaskView]] | Mapping[str, Known[SandboxView]]) -> list[list[str]]:
    """For each index, the keys of records with events that were written and not published."""
    return [[key for key, known in index.items() if known.unsaid] for index in indexed]


def _waits_for_sandbox(task: TaskView) -> bool:
    return task.state in {TaskState.ASSIGNED, TaskState.RUNNING}


def _waits_for(task: TaskView) -> Iterable[str]:
    """The tasks that it depends on: of one that has not ended they are still looked up, whatever has become of them."""
    return () if task.state in TASK_ENDED else task.depends_on


def _sandbox_of(task: TaskView) -> str:
    return f"{task.project}.{task.sandbox}"


def _old(ended_at: datetime | None, known: Known[TaskView] | Known[SandboxView], now: datetime, keep: float) -> bool:
    return ended_at is not None and not known.unsaid and ended_at + timedelta(seconds=keep) < now
