"""What of the spawner's records of sandboxes and tasks the relay decides by. Pure; `records` reads the buckets."""

from dataclasses import dataclass
from typing import Any

from sandherd.contracts.states import TASK_ENDED, SandboxState, TaskState


@dataclass(frozen=True, slots=True)
class Recorded:
    """A sandbox as its record has it. Without a task there is no agent in it."""

    state: SandboxState
    task: str | None = None
    attempt: int = 1
    reason: str | None = None
    unit: str | None = None
    """What its runtime knows it by, where that is not its own name."""


@dataclass(frozen=True, slots=True)
class RecordedTask:
    """A task as its record has it. `life` tells two tasks of one name apart."""

    state: TaskState
    life: str
    sandboxes: frozenset[str] = frozenset()
    """Of the current attempt and the one before."""

    @property
    def goes_on(self) -> bool:
        """Whether there is an attempt at it, or may be a further one by itself."""
        return self.state not in TASK_ENDED


def recorded_task(record: dict[str, Any]) -> RecordedTask:
    """Read a task's record, likewise."""
    before = (record.get("previous") or {}).get("sandbox")
    return RecordedTask(
        state=TaskState(record.get("state", TaskState.PENDING)),
        life=str(record.get("life", "")),
        sandboxes=frozenset(name for name in (record.get("sandbox"), before) if name),
    )


def recorded(record: dict[str, Any]) -> Recorded:
    """Read a record, in which everything that is at its default is left out: the first state, and no task."""
    return Recorded(
        state=SandboxState(record.get("state", SandboxState.REQUESTED)),
        task=record.get("task"),
        attempt=record.get("attempt", 1),
        reason=record.get("reason"),
        unit=record.get("unit"),
    )
