"""Days are archived before they are dropped, and restored, on a real Postgres and real files."""

import re
from collections.abc import AsyncIterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from prometheus_client import CollectorRegistry

from event_ingest.archive.archiver import SELECT_LIST, verify_file
from event_ingest.archive.day_restore import restore_day
from event_ingest.archive.directory_store import DirectoryStore
from event_ingest.archive.event_files import COLUMNS
from event_ingest.archive.history_archive import HistoryArchive
from event_ingest.archive.manifest import MANIFEST
from event_ingest.archive.restore_queue import HistoryRestores
from event_ingest.history_retention import DropResult, try_drop
from event_ingest.queries.retention import show_status
from event_ingest.storage.errors import StorageError, StorageFault
from event_ingest.storage.new_files import PARTIAL
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import GetHistoryStatus, HistoryStatus, ListHistoryArchives, RestoreHistory
from sandherd.contracts.subjects import Principal
from sandherd.telemetry.meters import Meters
from tests.engines.small_disk import small_disk
from tests.integration.event_ingest.old_days import POLICY, OldDays, opened_old_days
from tests.patience import PATIENCE
from tests.polling import eventually

ARCHIVE_PAGE = Path(__file__).parents[3] / "docs" / "archive.md"
_ALL = f"select {SELECT_LIST} from events e order by id"
_REQUEST = "insert into history_restores (day, project, until) values ($1, $2, now() + interval '7 days')"


@pytest.fixture
async def days(history: Any) -> AsyncIterator[OldDays]:
    async with opened_old_days(history) as found:
        yield found


@pytest.fixture
def archive(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


async def stored(days: OldDays) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in await days.connection.fetch(_ALL)]


def read(statement: str) -> list[Any]:
    """The result of a query in DuckDB, as users run it."""
    with duckdb.connect() as connection:
        return connection.execute(statement).fetchall()


def archived(archive: DirectoryStore, columns: str = "count(*)") -> Any:
    """The rows that DuckDB reads from all files."""
    return read(f"select {columns} from '{archive.directory}/*/*.parquet'")


async def status(days: OldDays, archive: DirectoryStore) -> HistoryStatus:
    return await show_status(POLICY, days.connection, GetHistoryStatus(), "fleet", 0, archive=archive.location)


async def restored(days: OldDays, archive: DirectoryStore, project: str = "") -> None:
    await days.connection.execute(_REQUEST, days.old, project)
    await HistoryRestores(days.history.database, archive).run_once(days.connection)


async def fill(days: OldDays, script: Any) -> None:
    """Store events of two projects on the old day, with texts that are hard to store, and one of today."""
    odd = script.agent("agent.message", "sbx-1", content='é "\\ 🐑 \ud7ff', content_length=9)
    life = script.life("task-1", "sbx-1")
    await days.store([*life, odd, *script.messages("sbx-2", 3, project="other")], days.old)
    await days.store(script.messages("sbx-1", 1), days.now.date())


async def test_day_is_archived_before_it_is_dropped_and_restored_to_the_letter(
    days: OldDays, archive: DirectoryStore, script: Any
) -> None:
    """DuckDB and a restore return all columns of all events unchanged; a restored day stays for a week."""
    await fill(days, script)
    before = await stored(days)
    metrics = await days.run(archive=archive)
    assert not await days.has(days.old)
    assert metrics.get_sample_value("sandherd_history_days_archived_total") == 1
    assert metrics.get_sample_value("sandherd_history_unarchived_days") == 0
    [*_, newest] = before
    found = read(f"select {', '.join(COLUMNS)} from '{archive.directory}/*/*.parquet' order by id")
    assert [(str(row[0]), row[-1]) for row in found] == [(str(row[0]), row[-1]) for row in before if row != newest]
    for _ in range(2):
        await restored(days, archive) if not await days.has(days.old) else await restore_day(
            days.connection, archive, days.old, None
        )
        assert await stored(days) == before
    await days.run(archive=archive)
    assert await days.has(days.old)
    [one] = (await status(days, archive)).restores
    assert (one.day, one.project, one.events, one.problem) == (days.old, None, len(before) - 1, None)


async def test_restored_day_is_dropped_again_without_being_archived_again(
    days: OldDays, archive: DirectoryStore, script: Any
) -> None:
    """A restored day is not archived again, even if only one project was restored; a late event is added alone."""
    await fill(days, script)
    await days.run(archive=archive)
    files = archive.manifest(days.old).files
    await restored(days, archive, "other")
    assert (await days.counts()) == {"default": 1, "other": 3}
    await days.connection.execute("update history_restores set until = now() - interval '1 day'")
    late = script.messages("sbx-3", 1)
    await days.store(late, days.old)
    await days.run(archive=archive)
    assert not await days.has(days.old)
    assert archive.manifest(days.old).files[: len(files)] == files
    assert [(file.project, file.events) for file in archive.manifest(days.old).files[len(files) :]] == [("default", 1)]
    assert archived(archive, "count(*), count(distinct id)") == [(14, 14)]


async def test_event_that_comes_while_a_day_is_archived_is_not_dropped(
    days: OldDays, archive: DirectoryStore, script: Any
) -> None:
    """The drop compares the number of events with that of the archive, and the next run archives late events."""
    await fill(days, script)
    retained = HistoryArchive(archive, Meters(CollectorRegistry()))
    covered = await retained.archive(days.connection, days.old)
    assert covered == 13
    await days.store(script.messages("sbx-4", 1), days.old)
    assert await try_drop(days.connection, days.old, POLICY, days.now, covered) is DropResult.CHANGED
    await days.run(archive=archive)
    assert not await days.has(days.old)
    assert archived(archive, "count(*), count(distinct id)") == [(14, 14)]


@pytest.mark.parametrize("left", ["default.00000000.parquet", "default.00000000.parquet" + PARTIAL, MANIFEST + PARTIAL])
async def test_interrupted_archive_is_written_once(
    days: OldDays, archive: DirectoryStore, script: Any, left: str
) -> None:
    """Files that a killed run has left without a manifest are deleted: nothing is lost, and no event is there twice."""
    await fill(days, script)
    retained = HistoryArchive(archive, Meters(CollectorRegistry()))
    assert await retained.archive(days.connection, days.old)
    [first, _] = archive.manifest(days.old).files
    archive.path(days.old, first.name).rename(archive.path(days.old, left))
    archive.path(days.old, MANIFEST).unlink()
    await days.run(archive=archive)
    assert not await days.has(days.old)
    assert not archive.path(days.old, left).exists()
    assert archived(archive, "count(*), count(distinct id)") == [(13, 13)]


async def test_full_archive_drops_nothing(days: OldDays, tmp_path: Path, script: Any) -> None:
    """The status and a metric have the reason, no part of the file is left, and with space the day is archived."""
    await fill(days, script)
    async with small_disk(tmp_path / "small", size=256 * 1024, inodes=64) as disk:
        archive = DirectoryStore(disk.path)
        disk.fill_bytes()
        metrics = await days.run(archive=archive)
        assert await days.has(days.old)
        assert metrics.get_sample_value("sandherd_history_unarchived_days") == 1
        [problem] = (await status(days, archive)).archive_problems
        assert (problem.day, "no space" in problem.problem, "free space" in problem.problem) == (days.old, True, True)
        assert archive.days() == []
        assert list((disk.path / days.old.isoformat()).iterdir()) == []
        disk.free()
        metrics = await days.run(archive=archive)
        assert not await days.has(days.old)
        assert metrics.get_sample_value("sandherd_history_unarchived_days") == 0
        assert (await status(days, archive)).archive_problems == []


async def test_archive_that_is_not_mounted_drops_nothing(days: OldDays, tmp_path: Path, script: Any) -> None:
    """The directory is not created: a file system that should be there may not be mounted."""
    archive = DirectoryStore(tmp_path / "absent")
    await fill(days, script)
    await days.run(archive=archive)
    assert await days.has(days.old)
    assert not archive.directory.exists()
    problems = {one.day: one.problem for one in (await status(days, archive)).archive_problems}
    assert "not an existing directory" in problems[days.old]


def damage(archive: DirectoryStore, day: date, how: str) -> StorageFault:
    """Damage the first file of a day; returns the problem that is then found."""
    path = archive.path(day, archive.manifest(day).files[0].name)
    content = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
        return StorageFault.MISSING
    if how == "manifest":
        archive.path(day, MANIFEST).write_text('{"version": 2}')
        return StorageFault.INVALID
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content) if how == "changed" else bytes(content[:-10]))
    return StorageFault.WRONG_DIGEST


@pytest.mark.parametrize("how", ["missing", "changed", "cut", "manifest"])
async def test_damaged_archive_is_not_restored_and_nothing_is_dropped_for_it(
    days: OldDays, archive: DirectoryStore, script: Any, how: str
) -> None:
    """A restore from a damaged archive changes nothing and states why; a restored day with one stays in the history."""
    await fill(days, script)
    await days.run(archive=archive)
    await restored(days, archive)
    complete = await stored(days)
    fault = damage(archive, days.old, how)
    await days.connection.execute("update history_restores set until = now() - interval '1 day'")
    await days.run(archive=archive)
    assert await stored(days) == complete
    assert len((await status(days, archive)).archive_problems) == 1
    await days.run()  # no archive
    assert not await days.has(days.old)
    with pytest.raises(StorageError) as caught:
        await restore_day(days.connection, archive, days.old, None)
    assert caught.value.fault is fault
    await days.connection.execute("delete from history_restores")
    await restored(days, archive)
    assert await days.counts() == {"default": 1}
    [one] = (await status(days, archive)).restores
    assert one.done_at is None
    assert one.problem is not None


async def test_file_that_was_written_wrongly_fails_the_verification(
    days: OldDays, archive: DirectoryStore, script: Any
) -> None:
    """The verification compares the values that are read back with those of Postgres, not only the file's bytes."""
    await fill(days, script)
    await HistoryArchive(archive, Meters(CollectorRegistry())).archive(days.connection, days.old)
    [first, second] = archive.manifest(days.old).files
    wrong = first.model_copy(update={"events_sha256": second.events_sha256})
    with pytest.raises(StorageError) as caught:
        verify_file(archive, days.old, wrong)
    assert caught.value.fault is StorageFault.WRONG_DIGEST


async def test_interrupted_restore_is_continued(days: OldDays, archive: DirectoryStore, script: Any) -> None:
    """A table that is partly loaded is not a part of the history, and the next run completes it."""
    await fill(days, script)
    before = await stored(days)
    await days.run(archive=archive)
    [first, second] = archive.manifest(days.old).files
    second_path = archive.path(days.old, second.name)
    content = second_path.read_bytes()

    class KilledError(Exception):
        """Raised in place of the end of the process."""

    class Stopping(DirectoryStore):
        opened_files = 0

        def open_file(self, day: date, name: str) -> Any:
            Stopping.opened_files += 1
            if Stopping.opened_files == 4:  # two were verified, and one is loaded
                raise KilledError
            return super().open_file(day, name)

    with pytest.raises(KilledError):
        await restore_day(days.connection, Stopping(archive.directory), days.old, None)
    assert content == second_path.read_bytes()
    assert not await days.has(days.old)
    await days.run(archive=archive)
    await restored(days, archive)
    assert await stored(days) == before
    assert first.events == 10
    assert not await days.has(days.old - timedelta(days=5))


async def test_documented_statements_of_duckdb(days: OldDays, archive: DirectoryStore, script: Any) -> None:
    """The statements of docs/archive.md read an archive."""
    events = script.life("task-1", "sbx-1") + script.messages("sbx-1", 2, project="web")
    await days.store(events, days.old)
    await days.run(archive=archive)
    [block] = re.findall(r"```sql\n(.+?)```", ARCHIVE_PAGE.read_text(), re.DOTALL)
    assert "2026-08-21" in block
    located = block.replace("/srv/archive", str(archive.directory)).replace("2026-08-21", days.old.isoformat())
    counts, texts = (part for part in located.replace("2026-08-*", "*").split(";") if part.strip())
    assert read(counts)[0][:3] == ("web", "agent.message", 2)
    assert [row[1:] for row in read(texts)] == [("sbx-1", "word 0"), ("sbx-1", "word 1")]


async def test_operator_lists_and_restores(world: Any, history: Any, archive: DirectoryStore, script: Any) -> None:
    """Through the service an operator lists the archive, and restores; errors are typed."""
    async with opened_old_days(history) as days:
        await fill(days, script)
        before = await stored(days)
        await days.run(archive=archive)
        async with world.service(history_archive=str(archive.directory)).running():
            operator = await world.bus(Principal.OPERATOR)

            async def ask(request: Any, project: str = FLEET) -> Any:
                return await operator.ask(request, project, timeout=PATIENCE)

            page = await ask(ListHistoryArchives())
            assert page.location == str(archive.directory)
            assert page.next_before is None
            assert [(one.day, one.project, one.events) for one in page.archives] == [
                (days.old, "default", 10),
                (days.old, "other", 3),
            ]
            assert (await ask(ListHistoryArchives(before=days.old))).archives == []
            requested = await ask(RestoreHistory(day=days.old, restored_by="ada"))
            assert (requested.project, requested.restored_by, requested.done_at) == (None, "ada", None)

            async def is_done() -> bool:
                [one] = (await ask(GetHistoryStatus())).restores
                assert one.problem is None
                return one.done_at is not None

            await eventually(is_done, "restored", PATIENCE)
            assert await stored(days) == before
            for refused, project, text in (
                (RestoreHistory(day=days.now.date()), FLEET, "not over yet"),
                (RestoreHistory(day=days.old - timedelta(days=1)), FLEET, "no events of any project"),
                (RestoreHistory(day=days.old), "web", "no events of web"),
            ):
                with pytest.raises(Exception, match=text):
                    await ask(refused, project)
            archive.directory.rename(archive.directory.with_name("gone"))
            with pytest.raises(Exception, match="not an existing directory"):
                await ask(ListHistoryArchives())


async def test_herd_without_an_archive_states_the_setting(world: Any) -> None:
    """Without an archive a list and a restore are refused, and the error names the setting."""
    async with world.service().running():
        operator = await world.bus(Principal.OPERATOR)
        for request in (ListHistoryArchives(), RestoreHistory(day=date(2026, 8, 21))):
            with pytest.raises(Exception, match="no archive"):
                await operator.ask(request, FLEET, timeout=PATIENCE)
