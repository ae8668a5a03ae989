"""Looking at each process of a stack: whether it runs, and whether it says that it is well."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sandherd.bus.identity import Identity
from sandherd.stack.cluster import WATCHER, ask_health, is_broker, server_name
from sandherd.stack.home import Home, ProcessRecord, StackRecord
from sandherd.stack.readiness import ask_ready
from sandherd.stack.resources import measure_shortage


@dataclass(frozen=True, kw_only=True)
class PartStatus:
    """One process of the stack. `detail` is what its `/readyz` says.

    The database is ready while it runs and has room; a server of the broker also has to store, and to have caught up
    with the others.
    """

    name: str
    pid: int | None
    running: bool
    ready: bool
    restarts: int = 0
    http: str | None = None
    detail: str = ""


async def look_at_all(home: Home, record: StackRecord) -> tuple[PartStatus, ...]:
    """Each part as it stands now."""
    health = await _health(home, record)
    parts = await asyncio.gather(*(_look_at(name, each, health) for name, each in record.processes.items()))
    return tuple(_with_shortage(home, part) for part in parts)


def _with_shortage(home: Home, part: PartStatus) -> PartStatus:
    """Broker and database with what they lack to store anything: they run all the same."""
    stores = part.name == "postgres" or is_broker(part.name)
    short = measure_shortage(part.name, home.path / part.name, part.pid) if stores else None
    return replace(part, ready=False, detail=short[1]) if short else part


async def _health(home: Home, record: StackRecord) -> dict[str, str]:
    """What the servers say of themselves: whether they have caught up with one another, and whether they store."""
    servers = [name for name in record.processes if is_broker(name)]
    watcher = Identity(home.path / "identity").root / WATCHER
    if record.nats_url is None or not watcher.exists():
        return {}
    found = await ask_health(record.nats_url, watcher, len(servers))
    return {name: found.get(server_name(name), "does not answer") for name in servers}


async def _look_at(name: str, process: ProcessRecord, health: Mapping[str, str]) -> PartStatus:
    running = process.alive
    if not running:
        ready, detail = False, "does not run"
    elif process.http is not None:
        ready, detail = await ask_ready(process.http)
    else:
        detail = health.get(name, "ok")
        # Broker and database have no HTTP side; a service that has none yet is not ready.
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
