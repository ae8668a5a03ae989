"""Through PgBouncer in transaction mode events are stored, migrated, indexed and queried as without it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from event_ingest.database import Database
from event_ingest.history_policy import ExpiredEvents
from event_ingest.history_reduction import DayReduction, ReductionResult, reduce_day
from event_ingest.partition_indexes import PartitionIndexes
from event_ingest.schema import Schema
from event_ingest.upgrade import upgrade
from event_ingest.word_segment_indexes import WordSegments
from sandherd.contracts.requests import GetAudit, ListEvents, VerifyHistory
from sandherd.stack.postgres import PostgresServer
from tests.engines.databases import execute, pooler
from tests.patience import PATIENCE
from tests.polling import eventually

DATABASE = "history"


@pytest.fixture
async def pooled(tmp_path: Path) -> AsyncIterator[tuple[PostgresServer, str]]:
    """A server, and the URL of its database through PgBouncer."""
    async with PostgresServer(tmp_path / "server", durable=False) as server:
        await server.create_database(DATABASE)
        async with pooler(server, tmp_path / "pooler") as options:
            yield server, f"{server.url(DATABASE)}&{options}"


@pytest.mark.faults
async def test_history_works_through_a_pooler(world: Any, script: Any, pooled: tuple[PostgresServer, str]) -> None:
    """Two replicas that migrate, store, index and reply at once, and a migration beside them, leave no lock.

    A removal of events from a day leaves none either.
    """
    server, url = pooled
    world.postgres = url
    events = [*script.life("task-1", "sbx-1"), *script.messages("sbx-1", 300), *script.messages("sbx-2", 300)]
    await world.voices(events)
    async with world.service(database_pooled=True).running(), world.service(database_pooled=True).running():
        await asyncio.gather(world.emit(events), upgrade(url, PATIENCE, after=True))
        await eventually(partial(_is_stored, server.url(DATABASE), len(events)), "all are stored", PATIENCE)
        audits = await asyncio.gather(*[world.ask(GetAudit()) for _ in range(8)])
        pages = await asyncio.gather(*[world.ask(ListEvents(sandbox="sbx-1", limit=50), "default") for _ in range(16)])
        verified = await world.ask(VerifyHistory(), "default")
    assert {(one.event_count, one.missing, one.dead) for one in audits} == {(len(events), 0, 0)}
    assert {len(page.events) for page in pages} == {50}
    assert (verified.entities, verified.incomplete, verified.differences) == (3, 0, [])
    database = Database(url, Schema(lambda: datetime.now(UTC)).prepare, pooled=True)
    for _ in range(3):
        assert await PartitionIndexes(database).create(datetime.now(UTC))
        assert await WordSegments(database, minimum=0).create(datetime.now(UTC))
    day = datetime.fromtimestamp((events[-1].id.int >> 80) / 1000, UTC).date()
    async with database.maintaining() as connection:
        wanted = DayReduction(day, ExpiredEvents(frozenset({"agent.message"})))
        assert await reduce_day(connection, wanted, datetime.now(UTC), None) is ReductionResult.REDUCED
    connection = await asyncpg.connect(server.url(DATABASE))
    try:
        assert await connection.fetchval("select count(*) from events") == len(events) - 600
        assert await connection.fetchval("select count(*) from pg_locks where locktype = 'advisory'") == 0
    finally:
        await connection.close()


async def test_pooler_that_would_lose_events_is_refused(pooled: tuple[PostgresServer, str]) -> None:
    """A role without waiting commits is a problem that names the remedy; so is a pooler that lacks its setting."""
    server, url = pooled
    await execute(server, "alter role postgres set synchronous_commit = off")
    assert "alter role" in await _problem(Database(url, Schema(lambda: datetime.now(UTC)).prepare, pooled=True))
    assert "SANDHERD_DATABASE_POOLED=true" in await _problem(Database(url, Schema(lambda: datetime.now(UTC)).prepare))


async def _problem(database: Database) -> str:
    checks = asyncio.create_task(database.run_checks())
    try:
        await eventually(lambda: database.problem() != "not checked yet", "checked", PATIENCE)
        return database.problem() or ""
    finally:
        checks.cancel()
        await asyncio.gather(checks, return_exceptions=True)


async def _is_stored(url: str, count: int) -> bool:
    connection = await asyncpg.connect(url)
    try:
        return bool(await connection.fetchval("select count(*) from events") == count)
    finally:
        await connection.close()
