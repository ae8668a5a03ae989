"""Reads the spawner's records of sandboxes and tasks: their states, and which task a sandbox belongs to."""

import asyncio

import nats.errors
import nats.js.errors

from sandherd.bus.connection import Bus
from sandherd.bus.kv import RecordT, read_record
from sandherd.bus.publish_retries import BROKER_BACKOFF
from sandherd.contracts.records import SharedSandboxRecord, SharedTaskRecord
from sandherd.telemetry import logs

_log = logs.get("record_reader")


async def sandbox_record(bus: Bus, project: str, sandbox: str) -> SharedSandboxRecord | None:
    """The record of a sandbox; None if there is none. Retries without limit while the broker is unavailable."""
    return await _read(bus, SharedSandboxRecord, project, sandbox)


async def task_record(bus: Bus, project: str, task: str) -> SharedTaskRecord | None:
    """The record of a task; None if there is none. Retries without limit while the broker is unavailable."""
    return await _read(bus, SharedTaskRecord, project, task)


async def _read(bus: Bus, kind: type[RecordT], project: str, name: str) -> RecordT | None:
    attempt = 0
    while True:
        try:
            return await read_record(bus, kind, project, name)
        except (TimeoutError, nats.errors.Error, nats.js.errors.Error, OSError) as error:
            _log.warning("bucket unavailable, retrying", bucket=kind.bucket, attempt=attempt, error=repr(error))
        await asyncio.sleep(BROKER_BACKOFF.delay(attempt))
        attempt += 1
