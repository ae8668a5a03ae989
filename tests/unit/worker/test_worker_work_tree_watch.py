"""The watch of a work tree: every change is noticed, or the kernel's limits are, and the end misses nothing."""

import asyncio
import errno
import mmap
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from sandherd_worker.file_tracker import FileTracker
from sandherd_worker.inotify import Inotify
from sandherd_worker.redaction import Redactor
from sandherd_worker.work_tree_watch import TreeWatch

NEVER = 3600
TRACKER = "sandherd_worker.file_tracker."
QUEUED = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@asynccontextmanager
async def watched(work: Path, listener: Any, emitter: Any) -> AsyncIterator[FileTracker]:
    """A tracker that watches; at the end, its final scan."""
    store = work.parent / "shadow"
    tracker = FileTracker(work, store, Redactor(), listener.publish, emitter.store_artifact)
    await tracker.start()
    yield tracker
    await tracker.finish()


def paths(listener: Any, kind: str = "created") -> set[str]:
    return {event.file_path for event in listener.events if getattr(event, "change_type", None) == kind}


@pytest.fixture
def notified(monkeypatch: Any) -> None:
    """Nothing is found but by a notification: there are no periodic scans."""
    monkeypatch.setattr(TRACKER + "_SCAN_SECONDS", NEVER)
    monkeypatch.setattr(TRACKER + "_CHECK_SECONDS", NEVER)


async def test_changes_below_new_and_moved_directories_are_noticed(
    work: Path, listener: Any, emitter: Any, eventually: Any, notified: None
) -> None:
    """Directories are created faster than they could be watched, and moved; what changes below them is reported."""
    async with watched(work, listener, emitter):
        for number in range(50):
            (work / f"{number}/a/b").mkdir(parents=True)
            (work / f"{number}/a/b/early").write_text("e\n")
        await eventually(lambda: len(paths(listener)) == 50, "files in new directories are told")
        (work / "7/a/b/late").write_text("l\n")
        await eventually(lambda: "7/a/b/late" in paths(listener), "they are watched now")
        (work / "7").rename(work / "moved")
        await eventually(lambda: "moved/a/b/late" in paths(listener, "renamed"), "the move is told")
        (work / "moved/a/b/after").write_text("m\n")
        await eventually(lambda: "moved/a/b/after" in paths(listener), "a moved directory is still watched")
        shutil.rmtree(work / "moved")
        await eventually(lambda: "moved/a/b/after" in paths(listener, "deleted"), "its removal is told")


async def test_change_behind_a_queue_overflow_is_noticed(
    work: Path, listener: Any, emitter: Any, eventually: Any, notified: None
) -> None:
    """A change is found whose event was lost because events of ignored files had filled the kernel's queue."""
    (work / ".gitignore").write_text("*.log\n")
    with capture_logs() as logged:
        async with watched(work, listener, emitter):
            one, other = (os.open(work / f"{name}.log", os.O_CREAT | os.O_WRONLY) for name in "ab")
            for _ in range(QUEUED // 2 + 1):  # in turn, as the kernel joins equal events; there is no reader meanwhile
                os.write(one, b"x")
                os.write(other, b"x")
            (work / "lost").write_text("l\n")
            await eventually(lambda: "lost" in paths(listener), "it is told")
            os.close(one)
            os.close(other)
    assert [entry["event"] for entry in logged] == ["file events were lost, comparing all files"]


async def test_change_before_the_watch_begins_is_not_missed(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that begins the watch may find a change without a notification; a later one may not."""

    def refuse(*_: Any) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def compare() -> None:
        watch.begin()
        (work / str(len(list(work.iterdir())))).touch()
        watch.see("")
        watch.missed()
        watch.end()

    watch = TreeWatch(work, lambda _path: False, lambda: None)
    with monkeypatch.context() as full:
        full.setattr(Inotify, "__init__", refuse)
        compare()
        complete = [watch.complete]
    compare()
    complete.append(watch.complete)
    watch.begin()
    watch.see("")
    watch.missed()
    complete.append(watch.complete)
    watch.close()
    assert complete == [False, True, False]


@pytest.mark.parametrize(("what", "number"), [("watch", errno.ENOSPC), ("__init__", errno.EMFILE)])
async def test_exhausted_watches_are_replaced_by_more_scans(
    work: Path, listener: Any, emitter: Any, eventually: Any, monkeypatch: Any, what: str, number: int
) -> None:
    """Without watches or instances, scans follow at the short interval, and one warning; the watch begins later."""
    monkeypatch.setattr(TRACKER + "_SCAN_SECONDS", 0.01)
    monkeypatch.setattr(TRACKER + "_CHECK_SECONDS", NEVER)

    def refuse(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    with capture_logs() as logged, monkeypatch.context() as full:
        full.setattr(Inotify, what, refuse)
        async with watched(work, listener, emitter) as tracker:
            (work / "a").write_text("a\n")
            await eventually(lambda: "a" in paths(listener), "it is told")
            (work / "b").write_text("b\n")
            await eventually(lambda: "b" in paths(listener), "so is the next")
            full.undo()
            monkeypatch.setattr(TRACKER + "_CHECK_SECONDS", NEVER)
            await eventually(lambda: tracker.pause == NEVER, "it watches again")
            (work / "c").write_text("c\n")
            await eventually(lambda: "c" in paths(listener), "a notification follows")
    assert [entry["event"] for entry in logged] == ["file watch is not complete, comparing more often"]


async def test_watch_that_missed_a_change_is_not_relied_on(
    work: Path, listener: Any, emitter: Any, eventually: Any, monkeypatch: Any
) -> None:
    """A write through mapped memory raises no event: the check finds it, and scans follow at the short interval."""
    monkeypatch.setattr(TRACKER + "_CHECK_SECONDS", 0.01)
    (work / "mapped").write_bytes(b"old\n")
    with capture_logs() as logged, (work / "mapped").open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        async with watched(work, listener, emitter) as tracker:
            mapped[:3] = b"new"
            mapped.flush()
            await eventually(lambda: "mapped" in paths(listener, "modified"), "it is told")
            await eventually(lambda: tracker.pause >= 30, "it is not relied on")
    assert [entry["event"] for entry in logged] == ["file watch missed a change, comparing more often"]


async def test_ignored_directories_take_no_watch(work: Path, listener: Any, emitter: Any, monkeypatch: Any) -> None:
    """Ignored directories have no watch, because the kernel limits the watches of each user."""
    (work / "src/deep").mkdir(parents=True)
    (work / "node_modules/some/package").mkdir(parents=True)
    seen: list[Path] = []
    real = Inotify.watch

    def watch(self: Inotify, path: Any) -> int:
        seen.append(Path(path))
        return real(self, path)

    monkeypatch.setattr(Inotify, "watch", watch)
    async with watched(work, listener, emitter):
        assert {path.relative_to(work).as_posix() for path in seen} == {".", "src", "src/deep"}


async def test_no_change_is_missed_at_the_end_of_a_churn(work: Path, listener: Any, emitter: Any) -> None:
    """An agent creates and deletes files and directories all the time: the events add up to the tree that it left."""

    def churn() -> None:
        for number in range(2000):
            folder = work / str(number % 40)
            folder.mkdir(exist_ok=True)
            (folder / str(number)).write_text(f"{number}\n")
            if number % 3 == 0:
                (folder / str(number)).unlink()
            if number % 100 == 99:
                shutil.rmtree(folder)

    async with watched(work, listener, emitter):
        await asyncio.to_thread(churn)
    left: set[str] = set()
    for event in listener.events:
        left -= {event.previous_path}
        left = left - {event.file_path} if event.change_type == "deleted" else left | {event.file_path}
    assert left == {path.relative_to(work).as_posix() for path in work.rglob("*") if path.is_file()}
