"""What of the spawner's record of a sandbox the relay decides by. Pure; `records` reads it from the bucket."""

from dataclasses import dataclass
from typing import Any

from sandherd.contracts.states import SandboxState


@dataclass(frozen=True, slots=True)
class Recorded:
    """A sandbox as its record has it. Without a task there is no agent in it."""

    state: SandboxState
    task: str | None = None
    attempt: int = 1
    reason: str | None = None


def recorded(record: dict[str, Any]) -> Recorded:
    """Read a record, in which everything that is at its default is left out: the first state, and no task."""
    return Recorded(
        state=SandboxState(record.get("state", SandboxState.REQUESTED)),
        task=record.get("task"),
        attempt=record.get("attempt", 1),
        reason=record.get("reason"),
    )
