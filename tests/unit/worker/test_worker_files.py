"""The tracker of files: a failure of the watch fails no task."""

import asyncio
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandherd_worker.file_tracker import FileTracker
from sandherd_worker.redaction import Redactor
from sandherd_worker.storable_text import valid_text


@pytest.fixture
def tracking(tmp_path: Path, listener: Any, emitter: Any) -> Callable[[], FileTracker]:
    """Makes a tracker of `work` whose events are received, and published."""
    (tmp_path / "work").mkdir()

    async def publish(event: Any) -> None:
        await emitter.emit(event)
        await listener.publish(event)

    return lambda: FileTracker(tmp_path / "work", tmp_path / "shadow", Redactor(), publish, emitter.store_artifact)


async def test_name_other_than_utf8_is_reported_with_replacements(
    tmp_path: Path, tracking: Callable[[], FileTracker], listener: Any, spool: Any, published_of: Any, eventually: Any
) -> None:
    """The watch fails on the name and restarts; a scan finds the file, with U+FFFD for invalid bytes."""
    work = tmp_path / "work"
    tracker = tracking()
    await tracker.start()
    name = os.fsencode(work) + b"/bad\xff\xfe"
    await asyncio.to_thread(Path(os.fsdecode(name)).write_text, "b\n")
    await eventually(lambda: "bad\ufffd\ufffd" in _paths(listener), "it is told")
    (work / "after").write_text("c\n")
    await eventually(lambda: "after" in _paths(listener), "what comes after it is told")
    await tracker.finish()
    bad = next(event.data for event in published_of(spool) if "bad" in event.data.file_path)
    assert (bad.file_path, bad.change_type) == ("bad\ufffd\ufffd", "created")
    assert bad.content_sha256 == hashlib.sha256(b"b\n").hexdigest()
    assert "+++ b/bad\ufffd\ufffd" in bad.full_diff


def _paths(listener: Any) -> set[str]:
    return {event.file_path for event in listener.events}


async def test_change_before_the_watch_is_ready_is_reported(
    tmp_path: Path, tracking: Callable[[], FileTracker], listener: Any, eventually: Any, monkeypatch: Any
) -> None:
    """A scan follows as soon as the watch is ready, not only the periodic one."""
    monkeypatch.setattr("sandherd_worker.file_tracker._SCAN_SECONDS", 3600)
    tracker = tracking()
    await tracker.start()
    (tmp_path / "work/early").write_text("e\n")
    await eventually(lambda: "early" in _paths(listener), "it is told")
    await tracker.finish()


async def test_flood_of_files_is_reported_completely(
    tmp_path: Path, listener: Any, emitter: Any, eventually: Any
) -> None:
    """10,000 files are created at once and moved with their folder: each is reported once, then as renamed."""
    (tmp_path / "work").mkdir()
    tracker = FileTracker(tmp_path / "work", tmp_path / "shadow", Redactor(), listener.publish, emitter.store_artifact)
    await tracker.start()
    (tmp_path / "work/a").mkdir()
    for number in range(10_000):
        (tmp_path / f"work/a/{number}").write_text(f"{number}\n")
    await eventually(lambda: len(listener.events) >= 10_000, "all are told")
    listener.events.clear()
    (tmp_path / "work/a").rename(tmp_path / "work/b")
    await tracker.finish()
    assert {(event.previous_path, event.file_path) for event in listener.events} == {
        (f"a/{number}", f"b/{number}") for number in range(10_000)
    }
    assert {event.change_type for event in listener.events} == {"renamed"}


async def test_large_diff_is_an_artifact(
    tmp_path: Path, tracking: Callable[[], FileTracker], listener: Any, spool: Any, records: Any
) -> None:
    """A preview and the size are in the event; the whole is an artifact ahead of it."""
    tracker = tracking()
    await tracker.start()
    text = "".join(f"{number:99}\n" for number in range(4000))
    (tmp_path / "work/large").write_text(text)
    (tmp_path / "work/small").write_text("s\n")
    await tracker.finish()
    large, small = sorted(listener.events, key=lambda event: str(event.file_path))
    assert (large.full_diff, large.full_diff_available, large.lines_added) == (None, True, 4000)
    assert large.diff_preview.startswith("--- /dev/null\n+++ b/large\n@@ -0,0 +1,4000 @@\n+")
    chunks = [one.payload for one in records(spool) if one.subject == large.full_diff_ref.subject]
    assert sum(map(len, chunks)) == large.full_diff_size == large.full_diff_ref.size
    assert b"".join(chunks).count(b"\n+") == 4000 + 1
    assert (small.full_diff_ref, small.full_diff_size) == (None, len(small.full_diff))


async def test_exceeded_file_limit_is_reported_once(
    tmp_path: Path, tracking: Callable[[], FileTracker], listener: Any, monkeypatch: Any
) -> None:
    """The limit on memory yields an error event."""
    monkeypatch.setattr("sandherd_worker.work_tree.MAX_FILES", 1)
    for name in "ab":
        (tmp_path / "work" / name).touch()
    tracker = tracking()
    await tracker.start()
    await tracker.scan()
    await tracker.finish()
    assert [event.phase for event in listener.events] == ["files"]


async def test_unreadable_directory_is_reported_once(
    tmp_path: Path, tracking: Callable[[], FileTracker], listener: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file in the directory is reported as deleted, and an error event names the directory."""
    (closed := tmp_path / "work" / "closed").mkdir()
    (closed / "a").touch()
    tracker, scandir = tracking(), os.scandir
    await tracker.start()

    def refuse(path: Any) -> Any:  # for root no directory is closed
        if Path(path) == closed:
            raise PermissionError
        return scandir(path)

    monkeypatch.setattr("sandherd_worker.work_tree.os.scandir", refuse)
    await tracker.scan()
    await tracker.finish()
    assert [event.error for event in listener.events] == [
        "the directory 'closed' can't be read; changes in such directories are not reported"
    ]


def test_invalid_characters_are_replaced_one_by_one() -> None:
    """Each invalid character becomes one, so that positions in the text are unchanged."""
    assert valid_text("a € \U0001f600\n") == "a € \U0001f600\n"
    assert valid_text("a\x00b\udcffc\ud83d") == "a\ufffdb\ufffdc\ufffd"


async def test_abandoned_scan_has_ended(tmp_path: Path, emitter: Any) -> None:
    """When `abandon` returns, no event is being published any more."""
    (work := tmp_path / "work").mkdir()
    began, ended = asyncio.Event(), asyncio.Event()

    async def publish(event: Any) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    tracker = FileTracker(work, tmp_path / "shadow", Redactor(), publish, emitter.store_artifact)
    await tracker.start()
    (work / "a").write_text("1\n")
    await began.wait()
    await tracker.abandon()
    assert ended.is_set()
