"""The two kinds of migrations: the last release's code runs on a schema of the first kind, but not of the second."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from event_ingest.database import APPLICATION_NAME
from event_ingest.migrator import (
    Migration,
    MigrationKind,
    MigrationRefusedError,
    migrate,
    migrations_before_new_code,
    read_migrations,
)
from event_ingest.upgrade import main, upgrade
from tests.integration.upgrades.conftest import program
from tests.patience import PATIENCE
from tests.releases.release_record import last_release

KNOWN = migrations_before_new_code(read_migrations())
NEXT = len(KNOWN) + 1
BEFORE = Migration(
    NEXT,
    "origins",
    """
    alter table events add column origin text not null default 'herd';
    alter table tasks add column cost bigint;
    create table origins (origin text primary key);
    create index events_of_origin on events (origin, stream_sequence);
    """,
    MigrationKind.BEFORE,
)
AFTER = Migration(NEXT + 1, "no_waits", "alter table tasks drop column not_before", MigrationKind.AFTER)
LATER = Migration(NEXT + 2, "again", "create table again (n int)", MigrationKind.BEFORE)


@asynccontextmanager
async def connected(url: str, **settings: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url, server_settings=settings)
    try:
        yield connection
    finally:
        await connection.close()


async def migrated(url: str, *further: Migration, after: bool) -> list[int]:
    async with connected(url) as connection:
        return await migrate(connection, [*KNOWN, *further], after=after)


async def history(old: Path, url: str, events: Sequence[Any]) -> tuple[list[str], dict[str, Any]]:
    outcomes, answers = await program(old, "history.py", url, "demo", stdin_events=events)
    return outcomes, answers


def spoken() -> list[Any]:
    """The events that the last release published, one of each type."""
    return list(last_release().of_kind("events").values())


async def test_old_code_runs_on_a_schema_of_the_first_kind(empty: str, old: Path) -> None:
    """The last release's event-ingest starts, stores and replies on today's schema, and on a later one."""
    assert await migrated(empty, BEFORE, AFTER, after=False) == [
        one.number for one in [*migrations_before_new_code(KNOWN), BEFORE]
    ]
    outcomes, answers = await history(old, empty, spoken())
    assert set(outcomes) == {"done"}
    stored = {event["envelope"]["id"] for event in answers["event-ingest.events"]["events"]}
    assert stored == {event["id"] for event in spoken()}
    assert answers["event-ingest.tasks"]["tasks"]
    assert answers["event-ingest.sandboxes"]["sandboxes"]
    assert answers["event-ingest.approvals"]["approvals"]
    assert answers["event-ingest.trajectory"]["events"]


async def test_old_code_refuses_a_schema_of_the_second_kind(empty: str, old: Path) -> None:
    """The old version reports that it is too old and ends, instead of failing at each event."""
    await migrated(empty, BEFORE, AFTER, after=True)
    with pytest.raises(AssertionError, match=f"the database has migration {AFTER.number}.*too old"):
        await history(old, empty, spoken()[:1])


async def test_migrations_before_new_code_stop_before_the_later_ones(empty: str) -> None:
    """The first kind runs alone, then the second; the next version completes what an earlier one left."""
    numbers = [one.number for one in KNOWN]
    assert await migrated(empty, BEFORE, AFTER, after=False) == [*numbers, BEFORE.number]
    assert await migrated(empty, BEFORE, AFTER, after=False) == []
    assert await migrated(empty, BEFORE, AFTER, LATER, after=False) == [AFTER.number, LATER.number]


async def test_todays_code_tolerates_the_next_versions_first_kind(empty: str) -> None:
    """Unknown optional migrations are ignored, also at the next start; required and edited ones are refused."""
    await migrated(empty, BEFORE, after=True)
    assert await migrated(empty, after=True) == []
    edited = Migration(BEFORE.number, BEFORE.name, "select 1", MigrationKind.BEFORE)
    with pytest.raises(MigrationRefusedError, match="was edited"):
        await migrated(empty, edited, after=False)
    await migrated(empty, BEFORE, AFTER, after=True)
    with pytest.raises(MigrationRefusedError, match="too old"):
        await migrated(empty, after=False)


async def test_later_migrations_wait_for_older_code_to_disconnect(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is removed while an event-ingest of the previous version is connected."""
    monkeypatch.setattr("event_ingest.migrator.read_migrations", lambda: [*KNOWN, AFTER])
    async with connected(empty, application_name=APPLICATION_NAME):
        assert await upgrade(empty, PATIENCE, after=False) == [one.number for one in KNOWN]
    for name in (APPLICATION_NAME, f"{APPLICATION_NAME} {len(KNOWN)}"):
        async with connected(empty, application_name=name):
            with pytest.raises(MigrationRefusedError, match="an older event-ingest still runs"):
                await upgrade(empty, 0, after=True)
    async with connected(empty, application_name=f"{APPLICATION_NAME} {AFTER.number}"):
        assert await upgrade(empty, PATIENCE, after=True) == [AFTER.number]


async def test_new_database_gets_migrations_of_both_kinds(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new database has no older version's code; one that starts later reports that it is too old."""
    monkeypatch.setattr("event_ingest.migrator.read_migrations", lambda: [*KNOWN, AFTER])
    assert await upgrade(empty, PATIENCE, after=False) == [*(one.number for one in KNOWN), AFTER.number]


async def test_migration_without_a_kind_is_refused(tmp_path: Path) -> None:
    """The name of an added file states when it is applied."""
    for one in KNOWN:
        kind = "" if one.kind is MigrationKind.FOUNDATION else f".{one.kind}"
        (tmp_path / f"{one.number:04}_{one.name}{kind}.sql").write_text(one.sql)
    (tmp_path / f"{NEXT:04}_more.sql").write_text("select 1")
    with pytest.raises(MigrationRefusedError, match=r"ends with \.before\.sql or \.after\.sql"):
        read_migrations(tmp_path)
    (tmp_path / f"{NEXT:04}_more.sql").rename(tmp_path / f"{NEXT:04}_more.after.sql")
    assert read_migrations(tmp_path)[-1].kind is MigrationKind.AFTER


def test_migrate_command_selects_the_kind(
    postgres: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`migrate before` and `migrate after` report that all is done; another argument is a usage error."""
    monkeypatch.setattr("event_ingest.upgrade.logs.configure", lambda *_: None)  # it would be so for all further tests
    monkeypatch.setenv("DATABASE_URL", postgres)
    for kind in ("before", "after"):
        assert main(["migrate", kind]) == 0
        assert capsys.readouterr().out.endswith("up to date\n")
    with pytest.raises(SystemExit, match="2"):
        main(["migrate", "never"])
