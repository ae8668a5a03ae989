"""Days are archived in a store with the API of S3 and restored from it, also when it fails as S3 may fail."""

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import date
from functools import partial
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from event_ingest.archive.day_restore import restore_day
from event_ingest.archive.event_files import read_keys
from event_ingest.archive.history_archive import HistoryArchive
from event_ingest.archive.s3_store import S3Store
from event_ingest.storage.errors import StorageError, StorageFault
from event_ingest.storage.s3_place import S3Place
from event_ingest.storage.upload import PART_BYTES
from sandherd.telemetry.meters import Meters
from tests.engines.s3_server import BUCKET, KEY, Fault, S3Network, s3_network, serving_s3
from tests.integration.event_ingest.old_days import OldDays, opened_old_days
from tests.patience import PATIENCE

_SHORT = 0.5
"""Seconds until a request without a reply fails: whichever request it is, the day is not dropped."""


@pytest.fixture
async def days(history: Any) -> AsyncIterator[OldDays]:
    async with opened_old_days(history) as found:
        yield found


@pytest.fixture(scope="module")
def s3_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving_s3(tmp_path_factory.mktemp("s3") / "data") as url:
        yield url


@pytest.fixture
def network(s3_url: str) -> Iterator[S3Network]:
    with s3_network(s3_url) as opened:
        yield opened


def store(network: S3Network, **changed: Any) -> S3Store:
    place = {"bucket": BUCKET, "prefix": network.prefix, "endpoint": network.url, "retries": 0}
    return S3Store(S3Place(**{**place, "access_key_id": KEY, "secret_access_key": KEY, **changed}))


async def fill(days: OldDays, script: Any) -> None:
    """Store events of two projects on the old day."""
    await days.store([*script.messages("sbx-1", 10), *script.messages("sbx-2", 3, project="other")], days.old)


def archived_ids(archive: S3Store, days: OldDays) -> list[Any]:
    """The ids of all events in the listed files."""
    found = []
    for file in archive.manifest(days.old).files:
        with archive.open_file(days.old, file.name) as opened:
            found += [key[1] for key in read_keys(opened)]
    return sorted(found)


async def problem(days: OldDays) -> str:
    """The reason why the old day is not archived."""
    return str(await days.connection.fetchval("select problem from history_archive_problems where day = $1", days.old))


async def test_day_is_archived_in_s3_and_restored_to_the_letter(days: OldDays, network: S3Network, script: Any) -> None:
    """A restored day's late event is in another file; nothing is archived twice, or left."""
    await fill(days, script)
    archive = store(network)
    before = await days.history.rows("select * from events order by id")
    await days.run(archive=archive)
    assert not await days.has(days.old)
    assert archived_ids(archive, days) == [row["id"] for row in before]
    assert archive.days() == [days.old]
    assert await restore_day(days.connection, archive, days.old, None) == 13
    assert await days.history.rows("select * from events order by id") == before
    await days.store(script.messages("sbx-3", 1), days.old)
    await days.run(archive=archive)
    assert not await days.has(days.old)
    assert [(file.project, file.events) for file in archive.manifest(days.old).files] == [
        ("default", 10),
        ("other", 3),
        ("default", 1),
    ]
    assert archive.delete_unlisted(archive.manifest(days.old)) == []


def failing(fault: Fault, beginning: str) -> Callable[[str], Fault | None]:
    """Make requests fail that begin with this text."""
    return lambda request: fault if request.startswith(beginning) else None


FAULTS = (
    (Fault.DENIED, "GET", "AccessDenied; check SANDHERD_S3_ACCESS_KEY_ID"),
    (Fault.DENIED, "PUT default", "AccessDenied"),
    (Fault.BUSY, "PUT other", "SlowDown"),
    (Fault.FULL, "PUT default", "no space"),
    (Fault.SILENT, "PUT default", "Timeout"),
    (Fault.SILENT, "HEAD other", "Timeout"),
    (Fault.CUT, "GET default", "can't be written or read in s3://"),
    (Fault.BUSY, "PUT manifest", "SlowDown"),
)
"""The faults: the beginning of the request, and a part of the problem."""


async def test_s3_that_fails_drops_nothing(days: OldDays, network: S3Network, script: Any) -> None:
    """However a request fails, the day stays, its problem names the reason, and later it is archived once."""
    await fill(days, script)
    for fault, of, text in FAULTS:
        network.fault = failing(fault, of)
        seconds = _SHORT if fault is Fault.SILENT else PATIENCE
        await days.run(archive=store(network, request_seconds=seconds))
        assert await days.has(days.old), (fault, of)
        assert text in await problem(days), (fault, of, await problem(days))
        assert KEY not in await problem(days)
    network.fault = lambda request: None
    metrics = await days.run(archive=store(network))
    assert metrics.get_sample_value("sandherd_history_unarchived_days") == 0
    assert not await days.has(days.old)
    assert len(set(archived_ids(store(network), days))) == 13
    assert sum(file.events for file in store(network).manifest(days.old).files) == 13


@pytest.mark.parametrize(
    ("changed", "fault", "text"),
    [
        ({"access_key_id": "other"}, StorageFault.DENIED, "InvalidAccessKeyId"),
        ({"bucket": "absent"}, StorageFault.UNREACHABLE, "NoSuchBucket"),
        ({"endpoint": "http://127.0.0.1:1"}, StorageFault.UNREACHABLE, "Connect"),
    ],
)
def test_wrong_settings_of_s3_are_typed_errors(
    s3_url: str, changed: dict[str, Any], fault: StorageFault, text: str
) -> None:
    """The error for a wrong setting is typed, and has the place without the secret."""
    place = {"bucket": BUCKET, "prefix": "a/b", "endpoint": s3_url, "access_key_id": KEY, "retries": 0}
    archive = S3Store(S3Place(**{**place, "secret_access_key": "hidden", **changed}))
    with pytest.raises(StorageError) as caught:
        archive.days()
    assert caught.value.fault is fault
    assert text in str(caught.value)
    assert archive.location in str(caught.value)
    assert "hidden" not in f"{caught.value}{archive._place!r}"


async def test_damaged_object_is_not_restored(days: OldDays, network: S3Network, script: Any) -> None:
    """Nothing is loaded from an object that is cut, changed or missing, or is cut on its way."""
    await fill(days, script)
    archive = store(network)
    await HistoryArchive(archive, Meters(CollectorRegistry())).archive(days.connection, days.old)
    await days.run()  # no archive
    name = archive.manifest(days.old).files[0].name
    with archive.open_file(days.old, name) as opened:
        content = opened.read()
    for damaged in (content[:-10], content[:50] + b"?" + content[51:]):
        with archive.create_file(days.old, name) as file:
            file.write(damaged)
        assert await fault_of_restore(days, archive) is StorageFault.WRONG_DIGEST
    archive._delete(days.old, name)
    assert await fault_of_restore(days, archive) is StorageFault.MISSING
    with archive.create_file(days.old, name) as file:
        file.write(content)
    network.fault = failing(Fault.CUT, f"GET {name}")
    assert await fault_of_restore(days, archive) is StorageFault.UNREACHABLE
    assert not await days.has(days.old)
    network.fault = lambda request: None
    assert await restore_day(days.connection, archive, days.old, None) == 13


async def fault_of_restore(days: OldDays, archive: S3Store) -> StorageFault:
    with pytest.raises(StorageError) as caught:
        await restore_day(days.connection, archive, days.old, None)
    return caught.value.fault


def test_large_object_is_sent_in_parts_and_abandoned_as_a_whole(network: S3Network) -> None:
    """An object of several parts is complete, or absent after an error of the writer or of the store."""
    archive, day = store(network), date(2026, 8, 21)
    pieces = [bytes([number]) * (PART_BYTES // 2) for number in range(6)]

    def write(name: str, *, fails: bool = False) -> None:
        with archive.create_file(day, name) as file:
            for piece in pieces:
                file.write(piece)
            if fails:
                raise ZeroDivisionError

    write("a.parquet")
    with archive.open_file(day, "a.parquet") as opened:
        assert b"".join(iter(partial(opened.read, PART_BYTES), b"")) == b"".join(pieces)
    assert sum(request.startswith("PUT") for request in network.requests) == len(pieces) // 2
    with pytest.raises(ZeroDivisionError):
        write("b.parquet", fails=True)
    network.fault = failing(Fault.BUSY, "PUT c.parquet")
    with pytest.raises(StorageError):
        write("c.parquet")
    network.fault = lambda request: None
    assert archive.delete_unlisted(archive.manifest(day)) == ["a.parquet"]
