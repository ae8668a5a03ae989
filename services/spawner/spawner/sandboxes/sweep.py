"""The sweep: compares all records with everything in the runtimes, and returns what must be done. Pure."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sandherd.contracts.requests import SandboxView, TaskView
from sandherd.contracts.states import SANDBOX_ENDED, TASK_ENDED, SandboxState, TaskState
from spawner.records.base_record import IndexEntry
from spawner.runtimes.contract import ObservedSandbox

_CREATED: Final = frozenset({SandboxState.SPAWNING, SandboxState.RUNNING, SandboxState.PAUSED})


@dataclass(frozen=True)
class SweepFindings:
    """The result of a sweep."""

    wake: frozenset[str]
    """Sandboxes to reconcile, by key."""
    strays: frozenset[str]
    """Tasks whose sandbox has no record, by key."""
    orphans: frozenset[str]
    """Sandboxes that exist but that no record needs, by name."""
    old_tasks: frozenset[str]
    """Ended tasks whose records must be removed, by key."""
    old_sandboxes: frozenset[str]
    """Ended sandboxes whose records must be removed, by key."""
    expired_secrets: frozenset[str] = frozenset()
    """Tasks whose secrets, stored for a retry, have expired, by key."""


def compare_records(
    tasks: Mapping[str, IndexEntry[TaskView]],
    sandboxes: Mapping[str, IndexEntry[SandboxView]],
    present: Iterable[ObservedSandbox],
    now: datetime,
    *,
    keep: float,
    quarantined: AbstractSet[str] = frozenset(),
    warm: AbstractSet[str] = frozenset(),
) -> SweepFindings:
    """Compare the records with each other and with the sandboxes in the runtimes (`present`).

    Ended records stay for `keep` seconds. Records of `quarantined` sandboxes stay, because the delivery of their events
    is retried. `warm` are the names of warm sandboxes of the pool.
    """
    names = units(sandboxes)
    existing = {seen.unit for seen in present}
    not_ended = {key for key, known in sandboxes.items() if known.view.state not in SANDBOX_ENDED}
    unremoved = {names[name] for name in existing if name in names} - not_ended
    needed = not_ended | {names[name] for name in existing | quarantined if name in names}
    depended_on = {
        f"{known.view.project}.{name}" for known in tasks.values() for name in _needed_dependencies(known.view)
    }
    unfinished = {_sandbox_of(known.view) for known in tasks.values() if _waits_for_sandbox(known.view)}
    return SweepFindings(
        wake=frozenset(not_ended | unremoved | (unfinished & sandboxes.keys())),
        strays=frozenset(
            key
            for key, known in tasks.items()
            if _waits_for_sandbox(known.view) and _sandbox_of(known.view) not in sandboxes
        ),
        orphans=frozenset(existing - names.keys() - warm),
        old_tasks=frozenset(
            key
            for key, known in tasks.items()
            if known.view.state in TASK_ENDED
            and _is_outdated(known.view.ended_at, known, now, keep)
            and _sandbox_of(known.view) not in needed
            and key not in depended_on
        ),
        old_sandboxes=frozenset(
            key
            for key, known in sandboxes.items()
            if known.view.state in SANDBOX_ENDED
            and _is_outdated(known.view.ended_at, known, now, keep)
            and key not in needed
        ),
        expired_secrets=frozenset(
            key for key, known in tasks.items() if known.view.secrets_until and known.view.secrets_until <= now
        ),
    )


def units(sandboxes: Mapping[str, IndexEntry[SandboxView]]) -> dict[str, str]:
    """The key of each record, by its unit in its runtime."""
    return {known.runtime_unit or known.view.sandbox: key for key, known in sandboxes.items()}


def lost(sandboxes: Mapping[str, IndexEntry[SandboxView]], present: AbstractSet[str]) -> frozenset[str]:
    """Sandboxes that were created, have not ended, and do not exist, by key."""
    return frozenset(
        key for unit, key in units(sandboxes).items() if sandboxes[key].view.state in _CREATED and unit not in present
    )


def unpublished(
    *indexed: Mapping[str, IndexEntry[TaskView]] | Mapping[str, IndexEntry[SandboxView]],
) -> list[list[str]]:
    """For each index, the keys of records with unpublished events."""
    return [[key for key, known in index.items() if known.unsaid] for index in indexed]


def _waits_for_sandbox(task: TaskView) -> bool:
    return task.state in {TaskState.ASSIGNED, TaskState.RUNNING}


def _needed_dependencies(task: TaskView) -> Iterable[str]:
    """The tasks that this task depends on, whose records are needed until it has ended; none afterwards."""
    return () if task.state in TASK_ENDED else task.depends_on


def _sandbox_of(task: TaskView) -> str:
    return f"{task.project}.{task.sandbox}"


def _is_outdated(
    ended_at: datetime | None, known: IndexEntry[TaskView] | IndexEntry[SandboxView], now: datetime, keep: float
) -> bool:
    return ended_at is not None and not known.unsaid and ended_at + timedelta(seconds=keep) < now
