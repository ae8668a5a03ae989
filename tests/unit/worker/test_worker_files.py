"""The tracker of files: what breaks the watch breaks no task."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandherd_worker.files import FileTracker
from sandherd_worker.redaction import Redactor
from sandherd_worker.sound import sound


@pytest.fixture
def tracking(tmp_path: Path, listener: Any, emitter: Any) -> Callable[[], FileTracker]:
    """Makes a tracker of `work` whose events are heard, and said."""
    (tmp_path / "work").mkdir()

    async def say(event: Any) -> None:
        await emitter.emit(event)
        await listener.say(event)

    return lambda: FileTracker(tmp_path / "work", tmp_path / "shadow", Redactor(), say, emitter.put_aside)


async def test_a_name_that_is_no_utf_8_is_said_and_breaks_nothing(
    tmp_path: Path, tracking: Callable[[], FileTracker], listener: Any, spool: Any, said: Any, eventually: Any
) -> None:
    """The watch breaks of it and begins anew; meanwhile a look finds it, and what can't be said is U+FFFD."""
    work = tmp_path / "work"
    tracker = tracking()
    await tracker.start()
    name = os.fsencode(work) + b"/bad\xff\xfe"
    await asyncio.to_thread(Path(os.fsdecode(name)).write_text, "b\n")
    await eventually(lambda: "bad\ufffd\ufffd" in _paths(listener), "it is told")
    (work / "after").write_text("c\n")
    await eventually(lambda: "after" in _paths(listener), "what comes after it is told")
    await tracker.finish()
    bad = next(event.data for event in said(spool) if "bad" in event.data.file_path)
    assert (bad.file_path, bad.change_type) == ("bad\ufffd\ufffd", "created")
    assert "+++ b/bad\ufffd\ufffd" in bad.full_diff


def _paths(listener: Any) -> set[str]:
    return {event.file_path for event in listener.events}


async def test_a_change_before_the_watch_has_begun_is_told_soon(
    tmp_path: Path, tracking: Callable[[], FileTracker], listener: Any, eventually: Any, monkeypatch: Any
) -> None:
    """Not only by the look that comes without a reason: the watch makes known that it has begun."""
    monkeypatch.setattr("sandherd_worker.files._EVERY", 3600)
    tracker = tracking()
    await tracker.start()
    (tmp_path / "work/early").write_text("e\n")
    await eventually(lambda: "early" in _paths(listener), "it is told")
    await tracker.finish()


async def test_a_flood_of_files_is_told_whole(tmp_path: Path, listener: Any, emitter: Any, eventually: Any) -> None:
    """10,000 files at once, then moved with their folder: each is told once, and the second time as what it is."""
    (tmp_path / "work").mkdir()
    tracker = FileTracker(tmp_path / "work", tmp_path / "shadow", Redactor(), listener.say, emitter.put_aside)
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


async def test_a_large_diff_goes_by_reference(
    tmp_path: Path, tracking: Callable[[], FileTracker], listener: Any, spool: Any, records: Any
) -> None:
    """A preview and the size are told; the whole is an artifact ahead of the event."""
    tracker = tracking()
    await tracker.start()
    text = "".join(f"{number:99}\n" for number in range(4000))
    (tmp_path / "work/large").write_text(text)
    (tmp_path / "work/small").write_text("s\n")
    await tracker.finish()
    large, small = sorted(listener.events, key=lambda event: str(event.file_path))
    assert (large.full_diff, large.full_diff_available, large.lines_added) == (None, True, 4000)
    assert large.diff_preview.startswith("--- /dev/null\n+++ b/large\n@@ -0,0 +1,4000 @@\n+")
    pieces = [one.payload for one in records(spool) if one.subject == large.full_diff_ref.subject]
    assert sum(map(len, pieces)) == large.full_diff_size == large.full_diff_ref.size
    assert b"".join(pieces).count(b"\n+") == 4000 + 1
    assert (small.full_diff_ref, small.full_diff_size) == (None, len(small.full_diff))


async def test_too_many_files_are_said_to_be_too_many_once(
    tmp_path: Path, tracking: Callable[[], FileTracker], listener: Any, monkeypatch: Any
) -> None:
    """The bound on memory is not kept in silence."""
    monkeypatch.setattr("sandherd_worker.tree.MOST_FILES", 1)
    for name in "ab":
        (tmp_path / "work" / name).touch()
    tracker = tracking()
    await tracker.start()
    await tracker.look()
    await tracker.finish()
    assert [event.phase for event in listener.events] == ["files"]


async def test_a_directory_that_cannot_be_read_is_said_to_be_so_once(
    tmp_path: Path, tracking: Callable[[], FileTracker], listener: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing in it is said to be gone, and that nobody looks there is not kept in silence."""
    (closed := tmp_path / "work" / "closed").mkdir()
    (closed / "a").touch()
    tracker, scandir = tracking(), os.scandir
    await tracker.start()

    def refuse(path: Any) -> Any:  # for root no directory is closed
        if Path(path) == closed:
            raise PermissionError
        return scandir(path)

    monkeypatch.setattr("sandherd_worker.tree.os.scandir", refuse)
    await tracker.look()
    await tracker.finish()
    assert [event.error for event in listener.events] == [
        "the directory 'closed' can't be read; what changes in such a one is not told"
    ]


def test_sound_text_stays_and_the_rest_is_replaced() -> None:
    """One sign for each that can't be kept, so that a position in the text stays what it was."""
    assert sound("a € \U0001f600\n") == "a € \U0001f600\n"
    assert sound("a\x00b\udcffc\ud83d") == "a\ufffdb\ufffdc\ufffd"
