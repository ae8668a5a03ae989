"""Publishes the changes of files in the work tree, made by a tool or by a shell.

Changes are noticed by inotify (see `work_tree_watch`) and determined by comparing; periodic scans and a final one find
changes that inotify missed. For files that are not watched, see `ignore`.

If many files change at once, only a few are in memory at a time: a file is read when earlier changes are published.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final, Literal, cast

from sandherd.concurrency import SHORT_CLEANUP_SECONDS, cancel_and_wait
from sandherd.contracts.events import ArtifactRef, EventData
from sandherd.contracts.events.agent import AgentError
from sandherd.contracts.events.tools import AgentFileEdited
from sandherd_worker.file_diffs import preview
from sandherd_worker.redaction import Redactor
from sandherd_worker.storable_text import valid_text
from sandherd_worker.work_tree import MAX_FILES, FileChange, WorkTree
from sandherd_worker.work_tree_watch import TreeWatch

MAX_INLINE_CHARS: Final = 50_000
_LARGE_CHARS: Final = 5000
_COLLECT_SECONDS: Final = 0.2
"""How long changes are collected before a scan."""
_SCAN_SECONDS: Final = 30.0
"""The interval of scans without a notification, if the watch is not complete."""
_CHECK_SECONDS: Final = 300.0
"""The interval if the watch is complete. Scans then only find changes that the kernel has not reported."""
_MIN_PAUSE_FACTOR: Final = 10
"""The minimum pause between scans is this multiple of the last scan's CPU time: at most a tenth of a core is used."""
_SCAN_PAUSE_FACTOR: Final = 100
"""The multiple for scans without a notification: they take at most a hundredth of a core."""
_CHECK_PAUSE_FACTOR: Final = 1000
"""The multiple for scans without a notification while the watch is complete."""
_MAX_GROUP: Final = 32
_MAX_GROUP_CHARS: Final = 1024 * 1024
"""How many changes are published together, and the maximum number of characters of their diffs."""

Publish = Callable[[EventData], Awaitable[object]]
StoreArtifact = Callable[[bytes], Awaitable[ArtifactRef]]
_DiffedChange = tuple[FileChange, str | None]
"""A change, and its diff without secrets."""


class FileTracker:
    """Watches one work tree from the baseline to the final scan."""

    def __init__(
        self, work_dir: Path, store: Path, redactor: Redactor, publish: Publish, store_artifact: StoreArtifact
    ) -> None:
        self._work_dir = work_dir
        self._noticed = asyncio.Event()
        self._watch = TreeWatch(work_dir, self._is_ignored, self._noticed.set)
        self._tree = WorkTree(work_dir, store, lambda text: redactor.lines(valid_text(text)), self._watch.see)
        self._redactor = redactor
        self._publish = publish
        self._store_artifact = store_artifact
        self._stopping = asyncio.Event()
        self._watching: list[asyncio.Task[None]] = []
        self._cost = 0.0
        """CPU time of the last scan, in seconds."""
        self._reported_too_many = self._reported_unreadable = False
        self.changed: set[str] = set()
        """Every path for which a change was published."""

    async def start(self) -> None:
        """Record the baseline, then watch. What exists now is not reported as a change."""
        self._watch.begin()
        await asyncio.to_thread(self._tree.take_baseline)
        self._watch.end()
        self._watching = [asyncio.create_task(self._scan_repeatedly())]

    async def finish(self) -> None:
        """Stop watching, and scan a last time. Raises `SpoolError`."""
        self._stopping.set()
        self._noticed.set()
        results = await asyncio.gather(*self._watching, return_exceptions=True)
        self._watch.close()
        await self.scan(last=True)
        self._tree.close()
        for result in results:
            if isinstance(result, BaseException):
                raise result

    @property
    def pause(self) -> float:
        """How long to wait for a notification before the next scan, in seconds."""
        if self._watch.complete:
            return max(_CHECK_SECONDS, _CHECK_PAUSE_FACTOR * self._cost)
        return max(_SCAN_SECONDS, _SCAN_PAUSE_FACTOR * self._cost)

    async def abandon(self) -> None:
        """Stop watching, without a final scan."""
        self._stopping.set()
        await cancel_and_wait(self._watching, again_after=SHORT_CLEANUP_SECONDS)
        self._watch.close()

    async def scan(self, *, last: bool = False) -> int:
        """Scan, and publish the changes; returns their number. `last`: files with temporary names are included."""
        self._cost, count = 0.0, 0
        changes = self._tree.changes(last=last)
        while group := await asyncio.to_thread(self._next_changes, changes):
            count += len(group)
            await asyncio.gather(*[self._publish(event) for event in [await self._event(*change) for change in group]])
        if self._tree.too_many and not self._reported_too_many:
            self._reported_too_many = True
            await self._report(f"there are more than {MAX_FILES} files in the work tree; changes of the others")
        if (unreadable := self._tree.unreadable) is not None and not self._reported_unreadable:
            self._reported_unreadable = True
            path = valid_text(unreadable)
            await self._report(f"the directory {path!r} can't be read; changes in such directories")
        return count

    async def _report(self, problem: str) -> None:
        """Publish that changes are not reported. Called once for each cause, because every scan finds it again."""
        await self._publish(AgentError(error=self._redactor.text(f"{problem} are not reported"), phase="files"))

    def _next_changes(self, changes: Iterator[FileChange]) -> list[_DiffedChange]:
        """The next few changes, with their redacted diffs."""
        began = time.thread_time()
        group: list[_DiffedChange] = []
        chars = 0
        for change in islice(changes, _MAX_GROUP):
            diff = None if change.change.diff is None else self._redactor.text(valid_text(change.change.diff))
            group.append((change, diff))
            chars += len(diff or "")
            if chars >= _MAX_GROUP_CHARS:
                break
        self._cost += time.thread_time() - began
        return group

    async def _scan_repeatedly(self) -> None:
        while not self._stopping.is_set():
            await _set_within(self._noticed, self.pause)
            await _set_within(self._stopping, _COLLECT_SECONDS)
            if self._stopping.is_set():
                return
            noticed = self._noticed.is_set()
            self._noticed.clear()
            self._watch.begin()
            if await self.scan() and not noticed:
                self._watch.missed()
            self._watch.end()
            await _set_within(self._stopping, _MIN_PAUSE_FACTOR * self._cost)

    def _is_ignored(self, path: str) -> bool:
        return self._tree.ignores(path)

    async def _event(self, change: FileChange, diff: str | None) -> AgentFileEdited:
        size = len(diff or "")
        reference = await self._store_artifact((diff or "").encode()) if size > MAX_INLINE_CHARS else None
        self.changed.add(change.path)
        return AgentFileEdited(
            file_path=valid_text(change.path),
            change_type=cast('Literal["created", "modified", "deleted", "renamed"]', change.kind),
            previous_path=None if change.previous_path is None else valid_text(change.previous_path),
            binary=change.change.binary,
            lines_added=change.change.added,
            lines_removed=change.change.removed,
            content_sha256=change.sha256,
            diff_preview=change.change.note if diff is None else preview(diff),
            full_diff=diff if size <= MAX_INLINE_CHARS else None,
            full_diff_available=size > _LARGE_CHARS,
            full_diff_size=size,
            full_diff_ref=reference,
        )


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, at most `seconds`."""
    if seconds <= 0:
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
