"""The spawner's records of sandboxes and tasks, as far as the relay reads them: how they stand, and whose they are."""

import asyncio
import json
from typing import Any

import nats.errors
import nats.js.errors

from message_relay.recorded import Recorded, RecordedTask, recorded, recorded_task
from sandherd.bus.connection import Bus, full_jitter
from sandherd.bus.reading import last_on
from sandherd.telemetry import logs

_log = logs.get("records")


async def recorded_of(bus: Bus, project: str, sandbox: str) -> Recorded | None:
    """How the sandbox stands; None if there is no such one. Waits for the broker as long as it takes."""
    record = await _read(bus, "sandboxes", f"{project}.{sandbox}")
    return None if record is None else recorded(record)


async def task_of(bus: Bus, project: str, task: str) -> RecordedTask | None:
    """How the task stands; None if there is no such one. Waits likewise."""
    record = await _read(bus, "tasks", f"{project}.{task}")
    return None if record is None else recorded_task(record)


async def _read(bus: Bus, bucket: str, key: str) -> dict[str, Any] | None:
    attempt = 0
    while True:
        try:
            return await _last(bus, bucket, key)
        except (TimeoutError, nats.errors.Error, nats.js.errors.Error, OSError) as error:
            _log.warning("the records can't be read yet", bucket=bucket, attempt=attempt, error=repr(error))
        await asyncio.sleep(full_jitter(attempt))
        attempt += 1


async def _last(bus: Bus, bucket: str, key: str) -> dict[str, Any] | None:
    try:
        last = await last_on(bus, f"KV_{bucket}", f"$KV.{bucket}.{key}")
    except nats.js.errors.NotFoundError:
        return None
    if "KV-Operation" in (last.headers or {}):
        return None
    found: dict[str, Any] = json.loads(last.data or b"{}")
    return found
