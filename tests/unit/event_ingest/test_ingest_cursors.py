"""Cursors, partitions, migrations and pages: what needs no database."""

import asyncio
import base64
import itertools
import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_ingest.database import DatabaseFault, DatabaseUnavailableError, classify_error
from event_ingest.migrator import (
    AppliedMigrations,
    Migration,
    MigrationRefusedError,
    read_migrations,
    unapplied_migrations,
)
from event_ingest.queries import pages
from event_ingest.queries.output import readable_text
from event_ingest.queries.pages import fit_page
from event_ingest.schema import bounds, partition_name, required_days
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.names import derived_uuid
from sandherd.contracts.requests import GetTrajectory, ListEvents, OutputChunk
from sandherd.service import cursors
from sandherd.service.cursors import read_cursor, read_time, write_cursor

KINDS = (int, str)


@given(st.integers(0, 2**62), st.text(st.characters(codec="utf-8", exclude_characters="\0")), st.integers(1, 1000))
def test_cursor_is_read_as_written(number: int, text: str, limit: int) -> None:
    """Any position is preserved, also with another limit or direction for the next page."""
    requested = GetTrajectory(sandbox="sbx-1")
    cursor = write_cursor(requested, "default", [number, text])
    again = GetTrajectory(sandbox="sbx-1", limit=limit, direction="older", cursor=cursor)
    assert read_cursor(again, "default", cursor, KINDS) == [number, text]
    assert cursor == base64.urlsafe_b64encode(base64.urlsafe_b64decode(cursor + "===")).decode().rstrip("=")


@given(st.text() | st.binary().map(lambda data: base64.urlsafe_b64encode(data).decode()))
def test_invalid_cursor_is_refused(cursor: str) -> None:
    """A text that is not a cursor is refused, and the error names the field."""
    with pytest.raises(ContractError) as refused:
        read_cursor(ListEvents(), "default", cursor, KINDS)
    assert (refused.value.problem.code, refused.value.problem.field) == (Code.INVALID_FIELD, "cursor")


@pytest.mark.parametrize("position", [7, None, {"a": 1}, [2**63, "x"], [7, "\0"], [7, "\ud800"], [7], [True, "x"]])
def test_forged_cursor_is_refused(position: Any) -> None:
    """A client can compute the seal. A position that no database accepts is refused, without an internal error."""
    for time in ("", "x", "2026-11-20", "0001-01-01T00:00:00+23:59"):
        with pytest.raises(ContractError):
            read_time(time)
    body = json.dumps(position).encode()
    cursor = base64.urlsafe_b64encode(cursors._seal(ListEvents(), "default", body) + body).decode()
    with pytest.raises(ContractError) as refused:
        read_cursor(ListEvents(), "default", cursor, KINDS)
    assert refused.value.problem.field == "cursor"


@given(st.data())
def test_changed_cursor_is_refused(data: st.DataObject) -> None:
    """The test changes one character at any place."""
    cursor = write_cursor(ListEvents(), "default", [7, "x"])
    place = data.draw(st.integers(0, len(cursor) - 1))
    other = data.draw(st.sampled_from([c for c in "ABCDEFGHabcdefgh01234567-_" if c != cursor[place]]))
    changed = cursor[:place] + other + cursor[place + 1 :]
    # The last character of base64 may have bits that mean nothing; then it is the same cursor in other letters.
    if base64.urlsafe_b64decode(changed + "===") != base64.urlsafe_b64decode(cursor + "==="):
        with pytest.raises(ContractError):
            read_cursor(ListEvents(), "default", changed, KINDS)


@pytest.mark.parametrize(
    ("requested", "project"),
    [(ListEvents(sandbox="sbx-2"), "default"), (ListEvents(), "other"), (GetTrajectory(sandbox="sbx-1"), "default")],
)
def test_cursor_of_another_request_is_refused(requested: ListEvents | GetTrajectory, project: str) -> None:
    """With other filters, another project or another type of request, the position would have another meaning."""
    cursor = write_cursor(ListEvents(), "default", [7, "x"])
    with pytest.raises(ContractError):
        read_cursor(requested, project, cursor, KINDS)


@given(st.datetimes(datetime(1971, 1, 1), datetime(9000, 1, 1), timezones=st.just(UTC)), st.text())  # noqa: DTZ001  # zones follow
def test_id_belongs_to_the_partition_of_its_day(at: datetime, fact: str) -> None:
    """The id lies within the UTC day's bounds from its first to its last millisecond, for any random bits."""
    first, end = bounds(at.date())
    assert first.int <= derived_uuid(at, fact).int < end.int
    assert bounds(at.date() + timedelta(days=1))[0] == end


def test_days_ahead_have_partitions() -> None:
    """Yesterday has one for events from before midnight, and the next week, in case no service runs for days."""
    days = list(required_days(date(2026, 12, 31)))
    assert (days[0], days[-1], len(days)) == (date(2026, 12, 30), date(2027, 1, 7), 9)
    assert partition_name(days[-1]) == "events_20270107"


def test_migrations_are_numbered_consecutively() -> None:
    """The files of this version are 1, 2, 3 …, and none is empty."""
    assert [migration.number for migration in read_migrations()] == list(range(1, len(read_migrations()) + 1))
    assert all(migration.sql.strip() for migration in read_migrations())


def test_gap_in_migration_numbers_is_refused(tmp_path: Path) -> None:
    """Files 1 and 3 without file 2 are refused, as a mistake in the release."""
    (tmp_path / "0001_a.sql").write_text("select 1")
    (tmp_path / "0003_c.sql").write_text("select 3")
    with pytest.raises(MigrationRefusedError):
        read_migrations(tmp_path)


def test_omitted_migration_is_refused() -> None:
    """A migration before an applied one can't be applied after it."""
    files = [Migration(1, "a", "1"), Migration(2, "b", "2")]
    assert [
        migration.number for migration in unapplied_migrations(files, AppliedMigrations({1: files[0].sha256}, {}))
    ] == [2]
    with pytest.raises(MigrationRefusedError):
        unapplied_migrations(files, AppliedMigrations({2: files[1].sha256}, {}))


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (ConnectionRefusedError(), DatabaseFault.UNAVAILABLE),
        (DatabaseUnavailableError(), DatabaseFault.UNAVAILABLE),
        (TimeoutError(), DatabaseFault.UNAVAILABLE),
        (asyncpg.CannotConnectNowError(), DatabaseFault.UNAVAILABLE),
        (asyncpg.InterfaceError("connection is closed"), DatabaseFault.UNAVAILABLE),
        (asyncpg.DiskFullError(), DatabaseFault.UNAVAILABLE),
        (asyncpg.DeadlockDetectedError(), DatabaseFault.CONFLICT),
        (asyncpg.SerializationError(), DatabaseFault.CONFLICT),
        (asyncpg.CharacterNotInRepertoireError(), DatabaseFault.POISON),
        (asyncpg.CheckViolationError(), DatabaseFault.POISON),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogate"), DatabaseFault.POISON),
        (ValueError(), None),
        (ContractError(Code.INTERNAL, "x"), None),
    ],
)
def test_database_error_is_classified(error: Exception, fault: DatabaseFault | None) -> None:
    """The database is unavailable, another replica interferes, data is invalid, or it is not a database's error."""
    assert classify_error(error) is fault


@given(st.lists(st.text(max_size=50)), st.integers(1, 10), st.integers(0, 500))
def test_page_is_neither_empty_nor_too_large(texts: list[str], limit: int, budget: int) -> None:
    """A page has the first rows up to the limits of rows and of bytes, but at least one row."""
    made = asyncio.run(fit_page(texts, _chunk, limit=limit, max_bytes=budget, available=len(texts)))
    assert made.rows == texts[: len(made.rows)]
    assert len(made.rows) <= limit
    assert made.has_more is (len(made.rows) < len(texts))
    assert bool(made.rows) is bool(texts)
    weight = sum(len(item.model_dump_json().encode()) + 1 for item in made.items)
    assert weight <= budget or len(made.items) <= 1


def test_page_of_expensive_items_lets_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an item that took long, other requests may run, even if the item has few bytes, such as a snippet."""
    times = itertools.count()
    monkeypatch.setattr(pages, "monotonic", lambda: next(times))
    texts = ["x"] * 20
    during: list[int] = []

    async def other() -> None:
        while len(during) < len(texts):
            during.append(len(built))
            await asyncio.sleep(0)

    def item(text: str) -> OutputChunk:
        built.append(text)
        return _chunk(text)

    async def both() -> None:
        await asyncio.gather(other(), fit_page(texts, item, limit=20, max_bytes=10_000, available=20))

    built: list[str] = []
    asyncio.run(both())
    assert during == list(range(len(texts)))


def _chunk(text: str) -> OutputChunk:
    return OutputChunk(stream_sequence=1, time=datetime(2026, 11, 20, tzinfo=UTC), text=text)


def test_invalid_utf8_is_replaced() -> None:
    """Invalid bytes are replaced, not refused. A long text states how many bytes are not shown."""
    assert readable_text(b"a\xffb", 10) == "a\N{REPLACEMENT CHARACTER}b"
    assert readable_text(b"x" * 30, 10) == "x" * 10 + "\n[20 more bytes]"
