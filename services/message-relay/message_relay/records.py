"""The spawner's record of a sandbox, as far as the relay reads it: how it stands, and whose it is."""

import asyncio
import json
from typing import Final

import nats.errors
import nats.js.errors

from message_relay.recorded import Recorded, recorded
from sandherd.bus.connection import Bus, full_jitter
from sandherd.telemetry import logs

_STREAM: Final = "KV_sandboxes"
_SUBJECT: Final = "$KV.sandboxes"
_log: Final = logs.get("records")


async def recorded_of(bus: Bus, project: str, sandbox: str) -> Recorded | None:
    """How the sandbox stands; None if there is no such one. Waits for the broker as long as it takes."""
    attempt = 0
    while True:
        try:
            return await _read(bus, project, sandbox)
        except (TimeoutError, nats.errors.Error, nats.js.errors.Error, OSError) as error:
            _log.warning("the sandboxes can't be read yet", attempt=attempt, error=repr(error))
        await asyncio.sleep(full_jitter(attempt))
        attempt += 1


async def _read(bus: Bus, project: str, sandbox: str) -> Recorded | None:
    try:
        last = await bus.js.get_last_msg(_STREAM, f"{_SUBJECT}.{project}.{sandbox}", direct=True)
    except nats.js.errors.NotFoundError:
        return None
    if "KV-Operation" in (last.headers or {}):
        return None
    return recorded(json.loads(last.data or b"{}"))
