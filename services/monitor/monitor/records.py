"""What the spawner's record says of a sandbox, read before one is acted upon: the fold is a view, the record is so."""

import json
from typing import Final

import nats.js.errors

from monitor.recorded import Recorded, recorded
from sandherd.bus.connection import Bus
from sandherd.bus.reading import last_on

_STREAM: Final = "KV_sandboxes"
_SUBJECT: Final = "$KV.sandboxes"


async def recorded_of(bus: Bus, project: str, sandbox: str) -> Recorded | None:
    """What the spawner's record says; None if there is no such sandbox.

    Raises what nats-py raises, and `ValueError` for a record that is none.
    """
    try:
        last = await last_on(bus, _STREAM, f"{_SUBJECT}.{project}.{sandbox}")
    except nats.js.errors.NotFoundError:
        return None
    if "KV-Operation" in (last.headers or {}):
        return None
    return recorded(json.loads(last.data or b"{}"))
