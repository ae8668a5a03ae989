"""A primary that ends or no longer responds, and a replica that is promoted: nothing is lost or stored twice."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from event_ingest.database import Database
from event_ingest.schema import Schema
from sandherd.contracts.requests import GetAudit
from sandherd.stack.postgres import PostgresServer
from tests.engines.databases import execute, freeze, replica_of
from tests.patience import PATIENCE
from tests.polling import eventually

DATABASE = "history"
EACH = 100


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[PostgresServer, PostgresServer]]:
    """A primary, and a replica that must confirm each of its commits."""
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
    """With both hosts in the URL, acknowledged events are in the replica, and the others are stored once.

    `frozen`: the primary's machine does not respond, so that connections to it begin and never end (`long`: time-outs).
    """
    primary, replica = pair
    world.postgres = _url(primary, replica)
    events = [script.messages(f"sbx-{place}", EACH) for place in range(4)]
    await world.voices([own[0] for own in events])
    async with world.service().running():
        await world.emit(events[0])
        await eventually(partial(_is_stored, _url(primary), EACH), "the first are stored", PATIENCE)
        await world.emit(events[1])
        stopped = freeze(primary) if frozen else []
        try:
            if not frozen:
                await primary.kill()
            await world.emit(events[2])
            await execute(replica, "select pg_promote()")
            await world.emit(events[3])
            await eventually(partial(_is_stored, _url(replica), 4 * EACH), "all are stored", PATIENCE)
            audit = await world.ask(GetAudit())
        finally:
            for process in stopped:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
    assert (audit.event_count, audit.missing, audit.sources, audit.dead) == (4 * EACH, 0, [], 0)


@pytest.mark.faults
@pytest.mark.long
async def test_index_that_is_created_on_a_frozen_server_is_given_up(tmp_path: Path) -> None:
    """A statement without a time limit ends when the database does not respond, and is repeated at the new primary.

    The old server does not close the connection, as when its machine has failed.
    """
    async with PostgresServer(tmp_path / "server", durable=False) as server:
        await server.create_database(DATABASE)
        database = Database(server.url(DATABASE), Schema(lambda: datetime.now(UTC)).prepare)
        checks, stopped = asyncio.create_task(database.run_checks()), list[int]()
        try:
            assert await database.wait_available(PATIENCE)
            async with database.maintaining() as connection, database.locked(1) as alone:
                assert alone
                work = asyncio.create_task(connection.execute("select pg_sleep(86400)"))
                await eventually(partial(_sleeps, server), "the statement runs", PATIENCE)
                stopped += freeze(server)
                done, _ = await asyncio.wait({work}, timeout=PATIENCE)
                assert done == {work}
                assert isinstance(work.exception(), asyncpg.PostgresConnectionError)
                assert database.problem() is not None
        except asyncpg.InterfaceError:
            assert stopped  # the transaction of the lock ends: its connection has ended, too
        finally:
            checks.cancel()
            for process in stopped:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            await asyncio.gather(checks, return_exceptions=True)


async def _sleeps(server: PostgresServer) -> bool:
    connection = await asyncpg.connect(server.url(DATABASE))
    try:
        statement = "select count(*) > 0 from pg_stat_activity where query like 'select pg_sleep%' and state = 'active'"
        return bool(await connection.fetchval(statement))
    finally:
        await connection.close()
