"""The spool on a full disk: its reserve, and the space that it frees."""

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from sandherd_worker import spool_cursor
from sandherd_worker.spool import SEGMENT_BYTES, Spool
from sandherd_worker.spool_disk import DiskFullError
from sandherd_worker.spool_file import RecordKind, RecordMark, SpoolRecord
from tests.patience import PATIENCE

LIMIT = 1 << 30


def event(sequence: int, payload: bytes = b"x", mark: RecordMark = RecordMark.NONE) -> SpoolRecord:
    return SpoolRecord(
        RecordKind.EVENT, "sandherd.v1.event.p.s.agent.message", f"id-{sequence}", payload, sequence, mark
    )


async def test_segments_not_removable_now_are_removed_later(tmp_path: Path, monkeypatch: Any) -> None:
    """On a full disk the cursor can't be saved, and the segments stay; the next acknowledgement removes them."""
    spool = Spool.open(tmp_path, limit=LIMIT)
    for _ in range(8):
        await spool.append_event(lambda sequence: event(sequence, b"y" * (SEGMENT_BYTES // 2)))
    tried = asyncio.Event()
    loop = asyncio.get_running_loop()

    def full(*_: Any, **__: Any) -> None:
        loop.call_soon_threadsafe(tried.set)
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(spool_cursor, "save", full)
    spool.acknowledge(4)
    await tried.wait()
    assert len(list(tmp_path.glob("*.log"))) == len(spool.segments)
    monkeypatch.undo()
    async with asyncio.timeout(PATIENCE):
        while len(list(tmp_path.glob("*.log"))) > 2:
            spool.acknowledge(5)
            await asyncio.sleep(0.01)
    await spool.close()


async def test_only_terminal_event_uses_the_reserve(tmp_path: Path, monkeypatch: Any, records: Any) -> None:
    """Other records refused for lack of space leave the reserve, as a full disk would take it."""
    spool = Spool.open(tmp_path, limit=LIMIT)
    await spool.append_event(event)
    reserve, real = tmp_path / "reserve", os.pwritev

    def scarce(*write: Any) -> int:
        if reserve.exists():
            raise OSError(errno.ENOSPC, "no space")
        return real(*write)

    monkeypatch.setattr(os, "pwritev", scarce)
    with pytest.raises(DiskFullError):
        await spool.append_event(event)
    assert reserve.stat().st_size > 0
    await spool.append_event(lambda sequence: event(sequence, mark=RecordMark.TERMINAL), use_reserve=True)
    assert [record.sequence for record in records(spool)] == [1, 2]
    await spool.close()


async def test_drained_spool_leaves_no_segment_on_a_full_disk(tmp_path: Path, monkeypatch: Any) -> None:
    """The unused reserve of the terminal event gives the last cursor its space."""
    spool = Spool.open(tmp_path, limit=LIMIT)
    await spool.append_event(event)
    real = spool_cursor.save

    def scarce(*args: Any, **more: Any) -> None:
        if (tmp_path / "reserve").exists():
            raise OSError(errno.ENOSPC, "no space")
        real(*args, **more)

    monkeypatch.setattr(spool_cursor, "save", scarce)
    spool.acknowledge(1)
    await spool.close()
    assert list(tmp_path.glob("*.log")) == []
    again = Spool.open(tmp_path, limit=LIMIT)
    assert again.sequence == 1
    await again.close()
