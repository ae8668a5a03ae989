"""A primary that ends or no longer responds, and a replica that is promoted: nothing is lost or stored twice."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from sandherd.contracts.requests import AskAudit
from sandherd.stack.postgres import PostgresServer
from tests.engines.databases import execute, freeze, replica_of
from tests.patience import PATIENCE
from tests.polling import eventually

DATABASE = "history"
EACH = 100


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[PostgresServer, PostgresServer]]:
    """A primary, and a replica that each of its commits waits for."""
    async with PostgresServer(tmp_path / "primary", durable=False) as primary:
        await primary.create_database(DATABASE)
        async with replica_of(primary, tmp_path / "replica") as replica:
            yield primary, replica


def _url(*servers: PostgresServer) -> str:
    hosts = ",".join(str(server.sockets) for server in servers)
    return f"postgresql://postgres@/{DATABASE}?host={hosts}&target_session_attrs=primary"


async def _is_stored(url: str, count: int) -> bool:
    connection = await asyncpg.connect(url)
    try:
        return bool(await connection.fetchval("select count(*) from events") == count)
    except asyncpg.UndefinedTableError:
        return False
    finally:
        await connection.close()


@pytest.mark.faults
@pytest.mark.parametrize("frozen", [False, pytest.param(True, marks=pytest.mark.long)])
async def test_promoted_replica_continues_the_history(
    world: Any, script: Any, pair: tuple[PostgresServer, PostgresServer], *, frozen: bool
) -> None:
    """With both hosts in the URL, what was acknowledged before is in the replica, and what was not is stored once.

    `frozen`: the primary's machine does not respond, so that connections to it begin and never end (`long`: time-outs).
    """
    primary, replica = pair
    world.postgres = _url(primary, replica)
    events = [script.messages(f"sbx-{place}", EACH) for place in range(4)]
    await world.voices([own[0] for own in events])
    async with world.service().running():
        await world.say(events[0])
        await eventually(partial(_is_stored, _url(primary), EACH), "the first are stored", PATIENCE)
        await world.say(events[1])
        stopped = freeze(primary) if frozen else []
        try:
            if not frozen:
                await primary.kill()
            await world.say(events[2])
            await execute(replica, "select pg_promote()")
            await world.say(events[3])
            await eventually(partial(_is_stored, _url(replica), 4 * EACH), "all are stored", PATIENCE)
            audit = await world.ask(AskAudit())
        finally:
            for process in stopped:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
    assert (audit.event_count, audit.missing, audit.sources, audit.dead) == (4 * EACH, 0, [], 0)
