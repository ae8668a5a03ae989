"""What the spawner's record says of a sandbox, read before one is acted upon: the fold is a view, the record is so."""

import json
from typing import Any, Final

import nats.js.errors

from sandherd.bus.connection import Bus
from sandherd.contracts.states import SandboxState

_STREAM: Final = "KV_sandboxes"
_SUBJECT: Final = "$KV.sandboxes"


async def state_of(bus: Bus, project: str, sandbox: str) -> SandboxState | None:
    """The state in the spawner's record; None if there is no such sandbox.

    Raises what nats-py raises, and `ValueError` for a record that is none.
    """
    try:
        last = await bus.js.get_last_msg(_STREAM, f"{_SUBJECT}.{project}.{sandbox}", direct=True)
    except nats.js.errors.NotFoundError:
        return None
    if "KV-Operation" in (last.headers or {}):
        return None
    record: dict[str, Any] = json.loads(last.data or b"{}")
    return SandboxState(record.get("state", ""))
