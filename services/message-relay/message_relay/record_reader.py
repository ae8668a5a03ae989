"""Reads the spawner's records of sandboxes and tasks: their states, and which task a sandbox belongs to."""

from message_relay.bucket_entries import until_available
from sandherd.bus.connection import Bus
from sandherd.bus.kv import RecordT, read_record
from sandherd.contracts.records import SharedSandboxRecord, SharedTaskRecord


async def sandbox_record(bus: Bus, project: str, sandbox: str) -> SharedSandboxRecord | None:
    """The record of a sandbox; None if there is none. Retries without limit while the broker is unavailable."""
    return await _read(bus, SharedSandboxRecord, project, sandbox)


async def task_record(bus: Bus, project: str, task: str) -> SharedTaskRecord | None:
    """The record of a task; None if there is none. Retries without limit while the broker is unavailable."""
    return await _read(bus, SharedTaskRecord, project, task)


async def _read(bus: Bus, kind: type[RecordT], project: str, name: str) -> RecordT | None:
    return await until_available(kind.bucket, lambda: read_record(bus, kind, project, name))
