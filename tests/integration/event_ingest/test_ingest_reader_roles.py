"""Roles that read the views: what they see, and what they can't do.

The roles belong to the server, which other tests also use, so each has a unique name.
"""

import asyncio
import os
import subprocess
import sys
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from event_ingest.reader_roles import ReaderRefusedError, create_reader, drop_reader, list_readers, scram_verifier
from event_ingest.schema import ensure_partitions
from event_ingest.sql_views import SCHEMA, VIEWS
from tests.patience import PATIENCE

PROGRAM = Path(sys.executable).with_name("sandherd-event-ingest")
PASSWORD = "correct horse battery"


@asynccontextmanager
async def connected(url: str, role: str = "postgres") -> AsyncIterator[Any]:
    """A session of a role: the server of the tests lets its user be any role."""
    connection = await asyncpg.connect(url.replace("//postgres@", f"//{role}@"))
    try:
        yield connection
    finally:
        connection.terminate()


@pytest.fixture
async def reader(history: Any, script: Any) -> AsyncIterator[str]:
    """A reader of the project `mine`; `other` has events of the same kinds."""
    role = f"reader_{uuid4().hex}"
    for project, sandbox in (("mine", "sbx-1"), ("other", "sbx-2")):
        events = script.life(f"task-{project}", sandbox, project=project)
        edited = script.agent("agent.file_edited", sandbox, project=project, file_path="a.py", change_type="created")
        await history.deliver([*events, edited, script.agent("agent.usage", sandbox, project=project, model="m")])
    async with connected(history.url) as owner:
        await create_reader(owner, role, ["mine"])
        yield role
        with suppress(ReaderRefusedError):  # a test has dropped it
            await drop_reader(owner, role)


FORBIDDEN = (
    "select * from public.events",
    "select * from public.events_default",
    "select * from public.history_readers",
    "select * from public.visible_projects",
    "select * from public.tasks",
    "insert into public.history_readers values (current_user, 'other')",
    f"delete from {SCHEMA}.tasks",
    f"update {SCHEMA}.sandboxes set reason = ''",
    f"create or replace view {SCHEMA}.tasks as select 1",
    f"create table {SCHEMA}.mine (n int)",
    "create table public.mine (n int)",
    "create temporary table mine (n int)",
    "create function pg_temp.leak(text) returns boolean language plpgsql cost 0.0001 as 'begin return true; end'",
    "create schema mine",
    "set role postgres",
    "set session authorization postgres",
    "copy (select 1) to program 'true'",
    "copy (select 1) to '/tmp/leak'",
    "select pg_read_file('postgresql.conf')",
    "select lo_create(0)",
    "select lo_from_bytea(0, 'x')",
    "select pg_logical_emit_message(false, 'x', 'x')",
    "select pg_advisory_lock(1)",
    "select pg_try_advisory_xact_lock_shared(1)",
    "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'postgres'",
    "select rolpassword from pg_authid",
    "alter role current_user connection limit -1",
    "set temp_file_limit = -1",
    "do 'begin lock table public.events in access share mode; end'",
    f"do 'begin lock table {SCHEMA}.sandbox_events in exclusive mode; end'",
)
"""Refused statements, each outside of a read-only transaction."""


async def test_reader_reads_the_views_of_its_project_only(history: Any, reader: str) -> None:
    """Each view has rows of the reader's project only, whatever a query requests; everything else is refused."""
    async with connected(history.url, reader) as session:
        for view in VIEWS:
            projects = {row["project"] for row in await session.fetch(f"select project from {view.name}")}
            assert projects <= {"mine"}
        assert [row["sandbox_id"] for row in await session.fetch("select sandbox_id from sandboxes")] == ["sbx-1"]
        # A condition that fails for a row of another project would reveal that row.
        for condition in ("1 / (case when project = 'other' then 0 else 1 end) = 1", "project = 'other'"):
            for view in VIEWS:
                rows = await session.fetch(f"select project from {view.name} where {condition}")
                assert {row["project"] for row in rows} <= {"mine"}
        assert await session.fetchval("select count(*) from pg_stats where schemaname = 'public'") == 0
        others = await session.fetch("select query from pg_stat_activity where usename <> current_user")
        assert {row["query"] for row in others} <= {"<insufficient privilege>"}
        await session.execute("set default_transaction_read_only = off; set search_path = pg_temp, public")
        assert [statement for statement in FORBIDDEN if not await _is_denied(session, statement)] == []


async def _is_denied(session: Any, statement: str) -> bool:
    try:
        await session.execute(statement)
    except asyncpg.InsufficientPrivilegeError:
        return True
    except asyncpg.PostgresError as error:
        raise AssertionError(f"{statement}: {error}") from error
    return False


async def test_projects_of_a_reader_are_replaced_and_a_dropped_one_sees_nothing(history: Any, reader: str) -> None:
    """New projects apply to open sessions at once; dropping the role ends its sessions, and the role is deleted."""
    async with connected(history.url) as owner, connected(history.url, reader) as session:
        assert await session.fetchval("select count(*) from tasks") == 1
        assert await create_reader(owner, reader, ["other", "mine"], PASSWORD) == []
        assert await session.fetchval("select count(*) from tasks") == 2
        assert (reader, ["mine", "other"]) in await list_readers(owner)
        stored = await owner.fetchval("select rolpassword from pg_authid where rolname = $1", reader)
        salt = b64decode(stored.split(":")[1].split("$")[0])
        assert stored == scram_verifier(PASSWORD, salt)
        await owner.execute(f"alter role \"{reader}\" password '{PASSWORD}'")
        by_server = await owner.fetchval("select rolpassword from pg_authid where rolname = $1", reader)
        assert by_server == scram_verifier(PASSWORD, b64decode(by_server.split(":")[1].split("$")[0]))
        await drop_reader(owner, reader)
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)):
            await session.fetchval("select count(*) from tasks")
        assert not await owner.fetchval("select exists (select from pg_roles where rolname = $1)", reader)


async def test_role_that_is_not_a_reader_or_has_other_permissions_is_refused(history: Any, reader: str) -> None:
    """An existing role is not taken over, and a reader that could do more is not created; nothing is left of it."""
    async with connected(history.url) as owner:
        for role, projects in (("postgres", ["mine"]), ("pg_new", ["mine"]), (f"{reader[:-1]}_", ["fleet"])):
            with pytest.raises(ReaderRefusedError):
                await create_reader(owner, role, projects)
        await owner.execute("grant select on tasks to public")
        with pytest.raises(ReaderRefusedError, match="it may use tasks"):
            await create_reader(owner, reader, ["other"])
        assert (reader, ["mine"]) in await list_readers(owner)
        await owner.execute("revoke select on tasks from public")
        with pytest.raises(ReaderRefusedError, match="not a reader"):
            await drop_reader(owner, "postgres")


async def test_open_transaction_of_a_reader_holds_up_no_partition(history: Any, reader: str) -> None:
    """A reader's transaction is ended when the creation of a partition needs a lock that it holds."""
    async with connected(history.url) as owner, connected(history.url, reader) as session:
        await session.execute("begin; select * from sandbox_events")
        async with asyncio.timeout(PATIENCE):
            assert await ensure_partitions(owner, datetime.now(UTC) + timedelta(days=30))


async def test_command_creates_lists_and_drops(postgres: str, tmp_path: Path) -> None:
    """The program reads the password from a file, and prints it nowhere; a second drop is refused with status 1."""
    role, file = f"reader_{uuid4().hex}", tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], "DATABASE_URL": postgres}
        return subprocess.run(
            [str(PROGRAM), "readers", *words], env=environment, capture_output=True, text=True, check=False,
            timeout=PATIENCE,
        )  # fmt: skip

    created = await asyncio.to_thread(run, "create", role, "--project", "mine", "--password-file", str(file))
    assert (created.returncode, created.stdout) == (0, f"{role} reads mine\n"), created.stderr
    assert PASSWORD not in created.stdout + created.stderr
    assert f"{role} mine\n" in (await asyncio.to_thread(run, "list")).stdout
    assert (await asyncio.to_thread(run, "drop", role)).stdout == f"dropped {role}\n"
    again = await asyncio.to_thread(run, "drop", role)
    assert (again.returncode, again.stdout) == (1, "")
    assert "is not a reader" in again.stderr
