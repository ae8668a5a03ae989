"""What the spawner's record says of a sandbox, read before one is acted upon: the fold is a view, the record is so."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import nats.js.errors

from sandherd.bus.connection import Bus
from sandherd.contracts.states import SandboxState

_STREAM: Final = "KV_sandboxes"
_SUBJECT: Final = "$KV.sandboxes"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A sandbox as the spawner's record has it, as far as the rules look at it."""

    state: SandboxState
    alone: bool = False
    """Whether no task is done in it."""
    expires_at: datetime | None = None


async def recorded_of(bus: Bus, project: str, sandbox: str) -> Recorded | None:
    """What the spawner's record says; None if there is no such sandbox.

    Raises what nats-py raises, and `ValueError` for a record that is none.
    """
    try:
        last = await bus.js.get_last_msg(_STREAM, f"{_SUBJECT}.{project}.{sandbox}", direct=True)
    except nats.js.errors.NotFoundError:
        return None
    if "KV-Operation" in (last.headers or {}):
        return None
    return recorded(json.loads(last.data or b"{}"))


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
