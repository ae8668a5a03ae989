"""The spool: appended records survive any failure."""

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sandherd_worker.spool import SEGMENT_BYTES, Spool
from sandherd_worker.spool_disk import SpoolBrokenError, SpoolBusyError, SpoolFullError
from sandherd_worker.spool_file import RecordKind, RecordMark, SpoolRecord, encode, scan

LIMIT = 1 << 30


def event(sequence: int, payload: bytes = b"x", mark: RecordMark = RecordMark.NONE) -> SpoolRecord:
    return SpoolRecord(
        RecordKind.EVENT, "sandherd.v1.event.p.s.agent.message", f"id-{sequence}", payload, sequence, mark
    )


async def fill(spool: Spool, count: int, payload: bytes = b"x") -> None:
    await asyncio.gather(*(spool.append_event(lambda sequence: event(sequence, payload)) for _ in range(count)))


async def test_records_are_read_in_order_after_a_restart(tmp_path: Path, records: Any) -> None:
    """Records are read as they were appended, numbered without a gap."""
    first = Spool.open(tmp_path, limit=LIMIT)
    await fill(first, 500)
    await first.close()
    second = Spool.open(tmp_path, limit=LIMIT)
    assert [record.sequence for record in records(second)] == list(range(1, 501))
    assert second.sequence == 500
    await second.close()


async def test_appended_record_is_on_the_disk(tmp_path: Path) -> None:
    """Another reader of the file finds the record as soon as its future is done, without any closing."""
    spool = Spool.open(tmp_path, limit=LIMIT)
    await spool.append_event(lambda sequence: event(sequence, b"there"))
    found = scan(next(tmp_path.glob("*.log")).read_bytes()).records
    assert [record.payload for record in found] == [b"there"]
    await spool.close()


async def test_record_is_not_readable_before_fsync(tmp_path: Path, records: Any) -> None:
    """A reader finds nothing before the fsync: a published sequence number must never be used twice."""
    spool = Spool.open(tmp_path, limit=LIMIT)
    waiting = spool.append_event(event)
    assert records(spool) == []
    await waiting
    assert len(records(spool)) == 1
    await spool.close()


@settings(max_examples=60, deadline=None)
@example(payloads=[b"\0\0\0", b"\0\0\0\0", b"\0\0\0\0"], cut=178, noise=b"\0")
@given(
    payloads=st.lists(st.binary(max_size=200), min_size=1, max_size=8),
    cut=st.integers(min_value=0, max_value=2000),
    noise=st.binary(max_size=40),
)
def test_torn_end_is_cut_off(payloads: list[bytes], cut: int, noise: bytes) -> None:
    """Wherever a file is torn, and whatever follows, all whole records before it are read."""
    blocks = [encode(event(number, payload)) for number, payload in enumerate(payloads, 1)]
    whole = b"".join(blocks)
    torn = whole[:cut] + noise
    # By chance the noise may begin with what was cut off: then nothing of that is missing.
    pairs = enumerate(zip(whole, torn, strict=False))
    cut = next((place for place, (one, other) in pairs if one != other), min(len(whole), len(torn)))
    ends = [sum(map(len, blocks[:count])) for count in range(len(blocks) + 1)]
    complete = max(count for count, end in enumerate(ends) if end <= cut)
    found = scan(torn)
    assert [record.payload for record in found.records[:complete]] == payloads[:complete]
    assert len(found.records) <= complete + (0 if cut < len(whole) else len(noise))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(min_value=0), bit=st.integers(min_value=0, max_value=7))
def test_flipped_bit_is_never_read_as_a_record(position: int, bit: int) -> None:
    """Every record that is read is one that was written."""
    written = [event(number, os.urandom(30)) for number in range(1, 5)]
    data = bytearray(b"".join(map(encode, written)))
    data[position % len(data)] ^= 1 << bit
    assert all(record in written for record in scan(bytes(data)).records)


async def test_torn_last_record_leaves_no_gap(tmp_path: Path, records: Any) -> None:
    """A half-written record is dropped, its number is reused, and later records are readable."""
    spool = Spool.open(tmp_path, limit=LIMIT)
    await fill(spool, 3)
    await spool.close()
    segment = next(tmp_path.glob("*.log"))
    with segment.open("ab") as file:
        file.write(encode(event(4))[:-2])
    again = Spool.open(tmp_path, limit=LIMIT)
    assert again.damage
    await fill(again, 2)
    assert [record.sequence for record in records(again)] == [1, 2, 3, 4, 5]
    await again.close()


async def test_sequence_and_end_survive_removal_of_records(tmp_path: Path, records: Any) -> None:
    """Numbers continue after all records were removed, and the end is not published again."""
    spool = Spool.open(tmp_path, limit=LIMIT)
    await fill(spool, 2)
    await spool.append_event(lambda sequence: event(sequence, mark=RecordMark.TERMINAL))
    spool.acknowledge(3)
    await spool.close()
    assert not list(tmp_path.glob("*.log"))
    again = Spool.open(tmp_path, limit=LIMIT)
    assert (again.sequence, again.ended, again.closed, again.depth) == (3, True, False, 0)
    await fill(again, 1)
    assert [record.sequence for record in records(again)] == [4]
    await again.close()


async def test_acknowledged_segments_are_removed(tmp_path: Path, records: Any) -> None:
    """Disk space is freed segment by segment; a restart finds exactly the unacknowledged records."""
    spool = Spool.open(tmp_path, limit=LIMIT)
    payload = b"y" * (SEGMENT_BYTES // 4)
    for _ in range(12):
        await spool.append_event(lambda sequence: event(sequence, payload))
    before = len(list(tmp_path.glob("*.log")))
    spool.acknowledge(9)
    await spool.close()
    assert len(list(tmp_path.glob("*.log"))) < before
    again = Spool.open(tmp_path, limit=LIMIT)
    assert [record.sequence for record in records(again)] == [10, 11, 12]
    await again.close()


async def test_full_spool_raises_and_accepts_the_terminal_event(tmp_path: Path, records: Any) -> None:
    """A refused record uses no number, earlier records remain, and the terminal event can be appended."""
    spool = Spool.open(tmp_path, limit=20_000)
    await fill(spool, 3, b"z" * 5000)
    with pytest.raises(SpoolFullError):
        await spool.append_event(lambda sequence: event(sequence, b"z" * 9000))
    assert isinstance(spool.trouble, SpoolFullError)
    with pytest.raises(SpoolFullError):
        await spool.append_event(event)
    await spool.append_event(lambda sequence: event(sequence, mark=RecordMark.TERMINAL), use_reserve=True)
    assert [record.sequence for record in records(spool)] == [1, 2, 3, 4]
    await spool.close()


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, SpoolFullError), (errno.EDQUOT, SpoolFullError), (errno.EIO, SpoolBrokenError)]
)
async def test_failed_write_loses_no_number(
    tmp_path: Path, records: Any, monkeypatch: Any, number: int, kind: type[Exception]
) -> None:
    """All appends of a failed write raise; the file ends where it did before, and numbers continue from there."""
    spool = Spool.open(tmp_path, limit=LIMIT)
    await fill(spool, 2)
    real = os.pwritev

    def broken(descriptor: int, data: Any, *where: int) -> int:
        real(descriptor, [bytes(data[0])[:7]], *where)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwritev", broken)
    results = await asyncio.gather(*(spool.append_event(event) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(result, kind) for result in results)
    monkeypatch.undo()
    assert (spool.sequence, [record.sequence for record in records(spool)]) == (2, [1, 2])
    if kind is SpoolFullError:
        await spool.append_event(lambda sequence: event(sequence, b"end", RecordMark.TERMINAL), use_reserve=True)
    await spool.close()
    again = Spool.open(tmp_path, limit=LIMIT)
    assert not again.damage
    assert again.sequence == (3 if kind is SpoolFullError else 2)
    await again.close()


async def test_terminal_event_can_be_repeated_after_a_failed_write(tmp_path: Path, monkeypatch: Any) -> None:
    """A terminal event whose write failed does not count as published."""
    spool = Spool.open(tmp_path, limit=LIMIT)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(SpoolFullError):
        await spool.append_event(lambda sequence: event(sequence, mark=RecordMark.TERMINAL))
    monkeypatch.undo()
    assert not spool.ended
    await spool.close()


async def test_spool_is_held_by_one_worker(tmp_path: Path) -> None:
    """A second worker is refused until the first one has closed the spool."""
    first = Spool.open(tmp_path, limit=LIMIT)
    with pytest.raises(SpoolBusyError):
        Spool.open(tmp_path, limit=LIMIT)
    await first.close()
    await Spool.open(tmp_path, limit=LIMIT).close()


async def test_failing_record_factory_uses_no_number(tmp_path: Path, records: Any) -> None:
    """An event that can't be built leaves no gap."""
    spool = Spool.open(tmp_path, limit=LIMIT)

    def bad(_sequence: int) -> SpoolRecord:
        raise LookupError

    with pytest.raises(LookupError):
        spool.append_event(bad)
    await fill(spool, 1)
    assert [record.sequence for record in records(spool)] == [1]
    await spool.close()
