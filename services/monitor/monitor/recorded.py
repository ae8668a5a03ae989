"""What of the spawner's record of a sandbox the rules look at. Pure; `records` reads it from the bucket."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sandherd.contracts.states import SandboxState


@dataclass(frozen=True, slots=True)
class Recorded:
    """A sandbox as the spawner's record has it, as far as the rules look at it."""

    state: SandboxState
    alone: bool = False
    """Whether no task is done in it."""
    expires_at: datetime | None = None


def recorded(record: dict[str, Any]) -> Recorded:
    """Read a record, in which everything that is at its default is left out: the first state, and no task.

    Raises `ValueError` for one that is none.
    """
    expires = record.get("expires_at")
    return Recorded(
        state=SandboxState(record.get("state", SandboxState.REQUESTED)),
        alone=record.get("task") is None,
        expires_at=datetime.fromisoformat(expires) if expires is not None else None,
    )
