"""Cursors, partitions and migrations: the parts that need no database."""

import asyncio
import base64
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_ingest.answers.cursors import read_cursor, write_cursor
from event_ingest.answers.output import readable
from event_ingest.answers.paging import cut
from event_ingest.database import DatabaseAwayError, Fault, fault_of
from event_ingest.migrating import Applied, Migration, MigrationRefusedError, read_migrations, unapplied
from event_ingest.partitions import bounds, partition_name, wanted_days
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.names import derived_uuid
from sandherd.contracts.requests import AskEvents, AskTrajectory, OutputChunk

KINDS = (int, str)


@given(st.integers(0, 2**62), st.text(), st.integers(1, 1000))
def test_a_cursor_is_read_as_it_was_written(number: int, text: str, limit: int) -> None:
    """Whatever place it holds, and also when the next page is asked with another limit or the other way."""
    asked = AskTrajectory(sandbox="sbx-1")
    cursor = write_cursor(asked, "default", [number, text])
    again = AskTrajectory(sandbox="sbx-1", limit=limit, direction="older", cursor=cursor)
    assert read_cursor(again, "default", cursor, KINDS) == [number, text]
    assert cursor == base64.urlsafe_b64encode(base64.urlsafe_b64decode(cursor + "===")).decode().rstrip("=")


@given(st.text() | st.binary().map(lambda data: base64.urlsafe_b64encode(data).decode()))
def test_what_is_no_cursor_is_refused(cursor: str) -> None:
    """Any text that was not given as a cursor is refused by the field's name."""
    with pytest.raises(ContractError) as refused:
        read_cursor(AskEvents(), "default", cursor, KINDS)
    assert (refused.value.problem.code, refused.value.problem.field) == (Code.INVALID_FIELD, "cursor")


@given(st.data())
def test_a_changed_cursor_is_refused(data: st.DataObject) -> None:
    """One character changed, anywhere in it."""
    cursor = write_cursor(AskEvents(), "default", [7, "x"])
    place = data.draw(st.integers(0, len(cursor) - 1))
    other = data.draw(st.sampled_from([c for c in "ABCDEFGHabcdefgh01234567-_" if c != cursor[place]]))
    changed = cursor[:place] + other + cursor[place + 1 :]
    # The last character of base64 may have bits that mean nothing; then it is the same cursor in other letters.
    if base64.urlsafe_b64decode(changed + "===") != base64.urlsafe_b64decode(cursor + "==="):
        with pytest.raises(ContractError):
            read_cursor(AskEvents(), "default", changed, KINDS)


@pytest.mark.parametrize(
    ("asked", "project"),
    [(AskEvents(sandbox="sbx-2"), "default"), (AskEvents(), "other"), (AskTrajectory(sandbox="sbx-1"), "default")],
)
def test_a_cursor_of_another_question_is_refused(asked: AskEvents | AskTrajectory, project: str) -> None:
    """Other filters, another project, another kind of question: the place would mean something else."""
    cursor = write_cursor(AskEvents(), "default", [7, "x"])
    with pytest.raises(ContractError):
        read_cursor(asked, project, cursor, KINDS)


@given(st.datetimes(datetime(1971, 1, 1), datetime(9000, 1, 1), timezones=st.just(UTC)), st.text())  # noqa: DTZ001  # zones follow
def test_an_id_lies_in_the_partition_of_its_day(at: datetime, fact: str) -> None:
    """Whatever its random bits are, from the first to the last millisecond of the UTC day."""
    first, end = bounds(at.date())
    assert first.int <= derived_uuid(at, fact).int < end.int
    assert bounds(at.date() + timedelta(days=1))[0] == end


def test_days_ahead_have_partitions() -> None:
    """Yesterday, for what was said before midnight, and a week ahead, should nobody look for days."""
    days = list(wanted_days(date(2026, 12, 31)))
    assert (days[0], days[-1], len(days)) == (date(2026, 12, 30), date(2027, 1, 7), 9)
    assert partition_name(days[-1]) == "events_20270107"


def test_the_migrations_are_in_order() -> None:
    """The files of this version are 1, 2, 3 …, and each says something."""
    assert [migration.number for migration in read_migrations()] == list(range(1, len(read_migrations()) + 1))
    assert all(migration.sql.strip() for migration in read_migrations())


def test_a_hole_in_the_numbers_is_refused(tmp_path: Path) -> None:
    """Files 1 and 3 without 2 are a mistake of the release."""
    (tmp_path / "0001_a.sql").write_text("select 1")
    (tmp_path / "0003_c.sql").write_text("select 3")
    with pytest.raises(MigrationRefusedError):
        read_migrations(tmp_path)


def test_a_file_that_was_left_out_is_refused() -> None:
    """What comes before an applied file can't be applied after it."""
    files = [Migration(1, "a", "1"), Migration(2, "b", "2")]
    assert [migration.number for migration in unapplied(files, Applied({1: files[0].sha256}, {}))] == [2]
    with pytest.raises(MigrationRefusedError):
        unapplied(files, Applied({2: files[1].sha256}, {}))


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (ConnectionRefusedError(), Fault.AWAY),
        (DatabaseAwayError(), Fault.AWAY),
        (TimeoutError(), Fault.AWAY),
        (asyncpg.CannotConnectNowError(), Fault.AWAY),
        (asyncpg.InterfaceError("connection is closed"), Fault.AWAY),
        (asyncpg.DiskFullError(), Fault.AWAY),
        (asyncpg.DeadlockDetectedError(), Fault.CONFLICT),
        (asyncpg.SerializationError(), Fault.CONFLICT),
        (asyncpg.CharacterNotInRepertoireError(), Fault.POISON),
        (asyncpg.CheckViolationError(), Fault.POISON),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogate"), Fault.POISON),
        (ValueError(), None),
        (ContractError(Code.INTERNAL, "x"), None),
    ],
)
def test_an_error_means_one_of_three_things(error: Exception, fault: Fault | None) -> None:
    """The database is away, another replica is in the way, the data is bad; or it is no error of the database."""
    assert fault_of(error) is fault


@given(st.lists(st.text(max_size=50)), st.integers(1, 10), st.integers(0, 500))
def test_a_page_is_never_empty_and_never_too_large(texts: list[str], limit: int, budget: int) -> None:
    """It has the first rows, at most the limit, within its bytes unless the first is over them alone."""
    made = asyncio.run(cut(texts, _chunk, limit=limit, budget=budget, found=len(texts)))
    assert made.rows == texts[: len(made.rows)]
    assert len(made.rows) <= limit
    assert made.more is (len(made.rows) < len(texts))
    assert bool(made.rows) is bool(texts)
    weight = sum(len(item.model_dump_json().encode()) + 1 for item in made.items)
    assert weight <= budget or len(made.items) <= 1


def _chunk(text: str) -> OutputChunk:
    return OutputChunk(stream_sequence=1, time=datetime(2026, 11, 20, tzinfo=UTC), text=text)


def test_bytes_that_are_no_text_are_readable() -> None:
    """Replaced, not refused; and what is too long says how much is not shown."""
    assert readable(b"a\xffb", 10) == "a\N{REPLACEMENT CHARACTER}b"
    assert readable(b"x" * 30, 10) == "x" * 10 + "\n[20 more bytes]"
