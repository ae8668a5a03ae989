"""The two kinds of migrations: code of the last release runs on a schema of the first kind, and not beyond it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from event_ingest.database import CALLED
from event_ingest.migrating import Kind, Migration, MigrationRefusedError, before_new_code, migrate, read_migrations
from event_ingest.upgrading import main, upgrade
from tests.integration.upgrades.conftest import program
from tests.patience import PATIENCE
from tests.releases.freezing import last_release

KNOWN = read_migrations()
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
    Kind.BEFORE,
)
AFTER = Migration(NEXT + 1, "no_waits", "alter table tasks drop column not_before", Kind.AFTER)
LATER = Migration(NEXT + 2, "again", "create table again (n int)", Kind.BEFORE)


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
    outcomes, answers = await program(old, "history.py", url, "demo", said=events)
    return outcomes, answers


def spoken() -> list[Any]:
    """What the last release said, one event of each type."""
    return list(last_release().of_kind("events").values())


async def test_old_code_runs_on_a_schema_of_the_first_kind(empty: str, old: Path) -> None:
    """The last release's event-ingest starts, stores and answers on today's schema, and on one that has grown again."""
    assert await migrated(empty, BEFORE, AFTER, after=False) == [
        one.number for one in [*before_new_code(KNOWN), BEFORE]
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
    """It says that it is too old and ends, instead of failing at each event."""
    await migrated(empty, BEFORE, AFTER, after=True)
    with pytest.raises(AssertionError, match=f"the database has migration {AFTER.number}.*too old"):
        await history(old, empty, spoken()[:1])


async def test_what_comes_before_new_code_stops_short_of_what_comes_after(empty: str) -> None:
    """First the one, then the other; and what an earlier version left is made up for by the next one's first kind."""
    numbers = [one.number for one in KNOWN]
    assert await migrated(empty, BEFORE, AFTER, after=False) == [*numbers, BEFORE.number]
    assert await migrated(empty, BEFORE, AFTER, after=False) == []
    assert await migrated(empty, BEFORE, AFTER, LATER, after=False) == [AFTER.number, LATER.number]


async def test_todays_code_tolerates_the_next_versions_first_kind(empty: str) -> None:
    """What may be unknown is passed over, also at the next start; what must be known is refused, and so is an edit."""
    await migrated(empty, BEFORE, after=True)
    assert await migrated(empty, after=True) == []
    edited = Migration(BEFORE.number, BEFORE.name, "select 1", Kind.BEFORE)
    with pytest.raises(MigrationRefusedError, match="was edited"):
        await migrated(empty, edited, after=False)
    await migrated(empty, BEFORE, AFTER, after=True)
    with pytest.raises(MigrationRefusedError, match="too old"):
        await migrated(empty, after=False)


async def test_the_second_kind_waits_for_older_code_to_be_gone(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While an event-ingest of the version before is connected nothing is taken away from it."""
    monkeypatch.setattr("event_ingest.upgrading.read_migrations", lambda: [*KNOWN, AFTER])
    monkeypatch.setattr("event_ingest.migrating.read_migrations", lambda: [*KNOWN, AFTER])
    await upgrade(empty, PATIENCE, after=False)
    for name in (CALLED, f"{CALLED} {len(KNOWN)}"):
        async with connected(empty, application_name=name):
            with pytest.raises(MigrationRefusedError, match="still runs as it was"):
                await upgrade(empty, 0, after=True)
    async with connected(empty, application_name=f"{CALLED} {AFTER.number}"):
        assert await upgrade(empty, PATIENCE, after=True) == [AFTER.number]


async def test_a_migration_without_a_kind_is_refused(tmp_path: Path) -> None:
    """A file that is added says in its name when it is applied."""
    for one in KNOWN:
        (tmp_path / f"{one.number:04}_{one.name}.sql").write_text(one.sql)
    (tmp_path / f"{NEXT:04}_more.sql").write_text("select 1")
    with pytest.raises(MigrationRefusedError, match=r"ends with \.before\.sql or \.after\.sql"):
        read_migrations(tmp_path)
    (tmp_path / f"{NEXT:04}_more.sql").rename(tmp_path / f"{NEXT:04}_more.after.sql")
    assert read_migrations(tmp_path)[-1].kind is Kind.AFTER


def test_the_command_takes_which_kind(
    postgres: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`migrate before` and `migrate after`, where all is done: both say so; another word is a misuse."""
    monkeypatch.setattr(
        "event_ingest.upgrading.logs.configure", lambda *_: None
    )  # it would be so for all further tests
    monkeypatch.setenv("DATABASE_URL", postgres)
    for kind in ("before", "after"):
        assert main(["migrate", kind]) == 0
        assert capsys.readouterr().out.endswith("up to date\n")
    with pytest.raises(SystemExit, match="2"):
        main(["migrate", "never"])
