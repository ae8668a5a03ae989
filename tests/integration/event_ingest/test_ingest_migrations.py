"""Migrations are applied once, in order, by any replica, and never past an edited file."""

import asyncio
from collections.abc import AsyncIterator
from itertools import chain
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from event_ingest.migrator import Migration, MigrationRefusedError, migrate, read_migrations
from event_ingest.queries.tasks_and_sandboxes import list_sandboxes, list_tasks
from sandherd.contracts.requests import ListPastSandboxes, ListPastTasks
from sandherd.stack.postgres import PostgresServer
from tests.databases import drop_database
from tests.patience import PATIENCE

ONE = Migration(1, "one", "create table one (n int)")
TWO = Migration(2, "two", "alter table one add m int")


@pytest.fixture
async def empty(postgres_server: PostgresServer) -> AsyncIterator[str]:
    name = f"empty_{uuid4().hex}"
    await postgres_server.create_database(name)
    yield postgres_server.url(name)
    await drop_database(postgres_server, name)


async def _with(url: str, *migrations: Migration) -> list[int]:
    connection = await asyncpg.connect(url)
    try:
        return await migrate(connection, migrations or read_migrations())
    finally:
        await connection.close()


async def _has_table(url: str, name: str) -> bool:
    connection = await asyncpg.connect(url)
    try:
        return bool(await connection.fetchval("select to_regclass($1) is not null", name))
    finally:
        await connection.close()


async def test_each_migration_is_applied_once(empty: str) -> None:
    """An applied file is not applied again, and a new file is applied alone."""
    assert await _with(empty, ONE) == [1]
    assert await _with(empty, ONE) == []
    assert await _with(empty, ONE, TWO) == [2]
    assert await _with(empty, ONE, TWO) == []


_OLD_ROWS = """
insert into tasks (project, task, state, state_sequence, state_at, attempt, text, harness, runtime, submitted_at,
    sandbox, sandbox_sequence, started_at, started_sequence)
values ('p', 'task-1', 'completed', 4, now(), 1, 't', 'command', 'process', now(), 'sbx-1', 4, now(), 3);
insert into sandboxes (project, sandbox, state, state_sequence, attempt, requested_at)
values ('p', 'sbx-1', 'terminated', 5, 1, now());
insert into events (id, stream_sequence, sequence, size, time, project, entity, type, source, envelope)
select gen_random_uuid(), 1, 1, 2, now(), 'p', 'task-1', type, '/sandherd/spawner/task-1/' || repeat(life, 32), '{}'
from (values ('task.submitted', 'a'), ('task.rejected', 'b')) as said (type, life);
"""


async def test_rows_from_before_attempts_are_migrated(empty: str) -> None:
    """Rows of the earlier schema yield a task with its sandbox and start, and no invented data."""
    await _with(empty, *read_migrations()[:2])
    connection = await asyncpg.connect(empty)
    try:
        await connection.execute(_OLD_ROWS)
        assert await migrate(connection) == [migration.number for migration in read_migrations()[2:]]
        assert await connection.fetchval("select life from tasks") == "a" * 32
        [task] = (await list_tasks(connection, ListPastTasks(), "p", 1_000_000)).tasks
        [box] = (await list_sandboxes(connection, ListPastSandboxes(), "p", 1_000_000)).sandboxes
    finally:
        await connection.close()
    assert (task.sandbox, task.priority, task.depends_on, task.max_attempts) == ("sbx-1", "normal", [], 1)
    assert task.started_at is not None
    assert (box.state, box.expires_at, box.profile, box.warm) == ("terminated", None, None, False)


async def test_concurrent_replicas_migrate_once(empty: str) -> None:
    """Of several replicas that start at once, one applies each migration, and all return when none is missing."""
    done = await asyncio.gather(*[_with(empty) for _ in range(4)])
    assert sorted(chain.from_iterable(done)) == [migration.number for migration in read_migrations()]


async def test_edited_migration_is_refused(empty: str) -> None:
    """A file that was changed after it was applied stops the service, and nothing is done."""
    await _with(empty, ONE)
    edited = Migration(1, "one", "create table one (n bigint)")
    with pytest.raises(MigrationRefusedError, match=r"migration 1 \(one\) was edited"):
        await _with(empty, edited, TWO)
    assert await _with(empty, ONE, TWO) == [2]


async def test_database_of_a_newer_version_is_refused(empty: str) -> None:
    """A service that is too old for the database reports it and changes nothing."""
    await _with(empty, ONE, TWO)
    with pytest.raises(MigrationRefusedError, match="too old"):
        await _with(empty, ONE)


async def test_failing_migration_changes_nothing(empty: str) -> None:
    """A broken file is rolled back whole; the ones before it stay."""
    broken = Migration(2, "broken", "create table two (n int); create nonsense")
    with pytest.raises(MigrationRefusedError, match="broken"):
        await _with(empty, ONE, broken)
    assert await _has_table(empty, "one")
    assert not await _has_table(empty, "two")
    assert await _with(empty, ONE, TWO) == [2]


async def test_service_with_an_edited_migration_stops(world: Any, postgres: str) -> None:
    """The service stops with an error instead of writing into an unknown schema."""
    connection = await asyncpg.connect(postgres)
    await connection.execute("update schema_migrations set sha256 = 'edited'")
    await connection.close()
    with pytest.raises(MigrationRefusedError, match="edited"):
        async with asyncio.timeout(PATIENCE):
            await world.service().run()
