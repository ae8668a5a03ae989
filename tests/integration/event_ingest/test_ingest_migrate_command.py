"""`sandherd-event-ingest migrate`: the program itself, with and without a database."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from event_ingest.migrator import read_migrations
from sandherd.stack.postgres import PostgresServer
from tests.databases import drop_database
from tests.patience import PATIENCE

PROGRAM = Path(sys.executable).with_name("sandherd-event-ingest")


@pytest.fixture
async def empty(postgres_server: PostgresServer) -> AsyncIterator[str]:
    name = f"empty_{uuid4().hex}"
    await postgres_server.create_database(name)
    yield postgres_server.url(name)
    await drop_database(postgres_server, name)


def run(*words: str, url: str) -> subprocess.CompletedProcess[str]:
    """Run the program with only a database in its environment."""
    environment = {"PATH": os.environ["PATH"], "DATABASE_URL": url}
    return subprocess.run(
        [str(PROGRAM), *words], env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
    )


async def test_empty_database_is_migrated_and_a_migrated_one_unchanged(empty: str) -> None:
    """The first run applies every migration and creates the partition; the second changes nothing. Both exit with 0."""
    first, second = run("migrate", url=empty), run("migrate", url=empty)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    assert first.stdout.splitlines()[-1] == f"migrated {', '.join(str(m.number) for m in read_migrations())}"
    assert second.stdout == "up to date\n"
    connection = await asyncpg.connect(empty)
    try:
        partitions = await connection.fetchval("select count(*) from pg_inherits where inhparent = 'events'::regclass")
    finally:
        await connection.close()
    assert partitions > 7


def test_unavailable_database_is_reported_without_its_password() -> None:
    """The status is 1 after the configured wait, with one line that does not have the password of the address."""
    done = run("migrate", "--wait", "0", url="postgresql://ann:s3cret@127.0.0.1:9/history")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "can't be used" in done.stderr
    assert "s3cret" not in done.stderr


async def test_database_of_a_later_version_is_refused(postgres: str) -> None:
    """With a database of a later version the status is 1, with the remedy, and nothing is changed."""
    connection = await asyncpg.connect(postgres)
    try:
        await connection.execute("insert into schema_migrations (number, name, sha256) values (9999, 'later', 'x')")
    finally:
        await connection.close()
    done = run("migrate", url=postgres)
    assert done.returncode == 1
    assert "upgrade" in done.stderr


def test_unknown_subcommand_is_a_usage_error() -> None:
    """The status of an unknown subcommand is 2; the service is not started by mistake."""
    assert run("serve", url="postgresql://127.0.0.1:9/x").returncode == 2
