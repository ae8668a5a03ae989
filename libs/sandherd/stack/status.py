"""Checks for each process of a stack whether it is running, and whether it is ready."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sandherd.stack.home import Home, ProcessRecord, StackRecord
from sandherd.stack.postgres_socket import recorded_directory
from sandherd.stack.readiness import read_database_readiness, read_readiness
from sandherd.stack.resource_shortages import measure_shortage
from sandherd.stack.server_health import is_broker, request_health, server_name


@dataclass(frozen=True, kw_only=True)
class PartStatus:
    """The status of one process of the stack. `detail` is the text of a service's `/readyz`, or the problem of a part.

    The database is ready if it responds and has enough space. A server of the broker must also store messages, and have
    caught up with the others.
    """

    name: str
    pid: int | None
    running: bool
    ready: bool
    restarts: int = 0
    http: str | None = None
    detail: str = ""


async def read_status(home: Home, record: StackRecord) -> tuple[PartStatus, ...]:
    """The present status of each part."""
    health = await _health(home, record)
    parts = await asyncio.gather(*(_part_status(name, process, health) for name, process in record.processes.items()))
    return tuple(_with_shortage(home, part) for part in parts)


def _with_shortage(home: Home, part: PartStatus) -> PartStatus:
    """Mark broker or database as not ready if it lacks space or descriptors: it keeps running, but can't store."""
    is_store = part.name == "postgres" or is_broker(part.name)
    shortage = measure_shortage(part.name, home.path / part.name, part.pid) if is_store else None
    return replace(part, ready=False, detail=shortage[1]) if shortage else part


async def _health(home: Home, record: StackRecord) -> dict[str, str]:
    """The health of the broker's servers, as they report it, and of the database, by the name of the part."""
    return await _broker_health(home, record) | await _database_health(record)


async def _database_health(record: StackRecord) -> dict[str, str]:
    process = record.processes.get("postgres")
    if record.database_url is None or process is None or not process.alive:
        return {}
    return {"postgres": await read_database_readiness(recorded_directory(record.database_url))}


async def _broker_health(home: Home, record: StackRecord) -> dict[str, str]:
    servers = [name for name in record.processes if is_broker(name)]
    if record.nats_url is None or not home.watcher_credentials.exists():
        return {}
    health_by_server = await request_health(record.nats_url, home.watcher_credentials, len(servers))
    return {name: health_by_server.get(server_name(name), "does not respond") for name in servers}


async def _part_status(name: str, process: ProcessRecord, health: Mapping[str, str]) -> PartStatus:
    running = process.alive
    if not running:
        ready, detail = False, "not running"
    elif process.http is not None:
        ready, detail = await read_readiness(process.http)
    else:
        detail = health.get(name, "ok")
        # Broker and database have no HTTP server; a service without one yet is not ready.
        ready, detail = detail == "ok" and (name == "postgres" or is_broker(name)), "" if detail == "ok" else detail
    if process.problem:
        detail = "; ".join(filter(None, (detail, process.problem)))
    return PartStatus(
        name=name,
        pid=process.pid if running else None,
        running=running,
        ready=ready,
        restarts=process.restarts,
        http=process.http,
        detail=detail,
    )
