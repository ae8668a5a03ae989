"""The spool's segments: zeros are written ahead of the records, which then overwrite them."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from sandherd.private_files import sync_directory
from sandherd_worker.spool import Spool
from sandherd_worker.spool_disk import SpoolBrokenError
from sandherd_worker.spool_file import RecordKind, SpoolRecord, encode, scan

LIMIT = 1 << 30


def event(sequence: int, payload: bytes = b"x") -> SpoolRecord:
    return SpoolRecord(RecordKind.EVENT, "sandherd.v1.event.p.s.agent.message", f"id-{sequence}", payload, sequence)


def killed(directory: Path, into: Path, also: bytes = b"") -> Path:
    """The directory as a killed worker leaves it, after it has begun to write these bytes."""
    into.mkdir()
    content = next(directory.glob("*.log")).read_bytes()
    end = scan(content).end
    (into / next(directory.glob("*.log")).name).write_bytes(content[:end] + also + content[end + len(also) :])
    return into


def zeros_of(directory: Path, into: Path) -> Path:
    """The directory as a worker leaves it that is killed before its first record is written."""
    into.mkdir()
    file = next(directory.glob("*.log"))
    (into / file.name).write_bytes(bytes(file.stat().st_size))
    return into


async def test_zeros_ahead_are_no_damage(tmp_path: Path, records: Any) -> None:
    """A killed worker leaves zeros behind its last record; they are cut off, and what is appended then is read."""
    spool = Spool.open(tmp_path / "spool", limit=LIMIT)
    await spool.append_event(event)
    size = next((tmp_path / "spool").glob("*.log")).stat().st_size
    await spool.append_event(event)
    assert next((tmp_path / "spool").glob("*.log")).stat().st_size == size, "the second record has overwritten zeros"
    again = Spool.open(killed(tmp_path / "spool", tmp_path / "killed"), limit=LIMIT)
    assert (again.damage, again.sequence) == ([], 2)
    await again.append_event(event)
    assert [record.sequence for record in records(again)] == [1, 2, 3]
    await again.close()
    await spool.close()
    file = next((tmp_path / "spool").glob("*.log"))
    assert file.stat().st_size == scan(file.read_bytes()).end, "an orderly end leaves no zeros"


async def test_file_that_was_created_ahead_is_overwritten(tmp_path: Path, records: Any) -> None:
    """The first record changes neither the directory nor the file's size, which takes longest to become durable."""
    spool = Spool.open(tmp_path, limit=LIMIT)
    spool.allocate()
    first = spool.append_event(event)
    spool.allocate()
    await first
    size = next(tmp_path.glob("*.log")).stat().st_size
    assert size == 128 * 1024, "the record has overwritten zeros"
    await spool.append_event(event)
    assert [record.sequence for record in records(spool)] == [1, 2]
    spool.acknowledge(2)
    await spool.close()
    assert not list(tmp_path.glob("*.log"))


async def test_file_that_was_created_ahead_holds_no_event(tmp_path: Path, records: Any) -> None:
    """Of a worker that was killed before its first record, only zeros are left: no event, and no damage."""
    spool = Spool.open(tmp_path / "spool", limit=LIMIT)
    spool.allocate()
    await spool.append_event(event)  # written behind
    again = Spool.open(zeros_of(tmp_path / "spool", tmp_path / "killed"), limit=LIMIT)
    assert (again.damage, again.sequence, again.depth) == ([], 0, 0)
    await again.append_event(event)
    assert [record.sequence for record in records(again)] == [1]
    await again.close()
    await spool.close()


@pytest.mark.parametrize("failing", ["open", "pwritev"])
async def test_file_that_was_not_created_ahead_is_created_later(
    tmp_path: Path, records: Any, monkeypatch: Any, failing: str
) -> None:
    """An error is no error of the spool, unless it meets a record."""
    real, failed = getattr(os, failing), list[object]()

    def fail_once(what: Any, *how: Any) -> Any:
        if not failed and (failing == "pwritev" or str(what).endswith(".log")):
            failed.append(what)
            raise OSError(errno.ENOSPC, "no space")
        return real(what, *how)

    spool = Spool.open(tmp_path, limit=LIMIT)
    monkeypatch.setattr(os, failing, fail_once)
    spool.allocate()
    await spool.append_event(event)
    assert failed
    assert spool.trouble is None
    assert [record.sequence for record in records(spool)] == [1]
    await spool.close()


async def test_directory_that_was_not_synced_ahead_is_synced_before_the_first_record(
    tmp_path: Path, records: Any, monkeypatch: Any
) -> None:
    """The kernel reports such an error once, and a file without a durable entry is lost with all its records."""
    calls = list[Path]()

    def fail_once(directory: Path) -> None:
        calls.append(directory)
        if len(calls) == 1:
            raise OSError(errno.EIO, "input/output error")
        sync_directory(directory)

    spool = Spool.open(tmp_path, limit=LIMIT)
    monkeypatch.setattr("sandherd_worker.spool_disk.sync_directory", fail_once)
    spool.allocate()
    await spool.append_event(event)
    assert len(calls) == 2
    assert [record.sequence for record in records(spool)] == [1]
    await spool.close()


async def test_directory_that_can_not_be_synced_is_reported_by_the_first_record(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """Also if its file was created ahead: it is not stored before it is durable."""

    def fail(_directory: Path) -> None:
        raise OSError(errno.EIO, "input/output error")

    spool = Spool.open(tmp_path, limit=LIMIT)
    monkeypatch.setattr("sandherd_worker.spool_disk.sync_directory", fail)
    spool.allocate()
    with pytest.raises(SpoolBrokenError):
        await spool.append_event(event)
    assert isinstance(spool.trouble, SpoolBrokenError)
    await spool.close()


@pytest.mark.parametrize("length", [1, 8, 40, 60])
async def test_record_torn_within_zeros_is_damage(tmp_path: Path, records: Any, length: int) -> None:
    """Of a record only the beginning was written: it is reported and cut off, and its number is used again."""
    spool = Spool.open(tmp_path / "spool", limit=LIMIT)
    await spool.append_event(event)
    begun = b"\xff" * length if length == 1 else encode(event(2, b"y" * 100))[:length]
    again = Spool.open(killed(tmp_path / "spool", tmp_path / "killed", begun), limit=LIMIT)
    assert len(again.damage) == 1
    await again.append_event(event)
    assert [record.sequence for record in records(again)] == [1, 2]
    await again.close()
    await spool.close()


async def test_zeros_do_not_need_the_space(tmp_path: Path, records: Any, monkeypatch: Any) -> None:
    """On a disk that has space for the record only, it is stored without zeros."""
    real = os.pwritev

    def scarce(descriptor: int, data: Any, *where: int) -> int:
        if len(data[0]) > 1000:
            real(descriptor, [bytes(data[0])[:1000]], *where)
            raise OSError(errno.ENOSPC, "no space")
        return real(descriptor, data, *where)

    spool = Spool.open(tmp_path, limit=LIMIT)
    monkeypatch.setattr(os, "pwritev", scarce)
    for _ in range(3):
        await spool.append_event(event)
    content = next(tmp_path.glob("*.log")).read_bytes()
    assert (scan(content).end, scan(content).torn) == (len(content), 0)
    assert [record.sequence for record in records(spool)] == [1, 2, 3]
    await spool.close()


async def test_without_durable_writes_each_batch_is_synced(tmp_path: Path, records: Any, monkeypatch: Any) -> None:
    """A system that refuses the flag gets the same data in two calls."""
    real, sync = os.pwritev, os.fdatasync
    synced: list[None] = []

    def refuse(descriptor: int, data: Any, offset: int, flags: int) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwritev", refuse)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: synced.append(sync(descriptor)))
    spool = Spool.open(tmp_path, limit=LIMIT)
    for number in range(1, 4):
        await spool.append_event(event)
        assert len(synced) == number
    assert [record.sequence for record in records(spool)] == [1, 2, 3]
    await spool.close()
