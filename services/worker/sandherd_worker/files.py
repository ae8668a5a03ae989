"""What becomes of the files of the work tree, said as events, whoever changed them: a tool or a shell.

A change is noticed by inotify, and what it was is found by comparing; a look at everything now and then, and a last
one at the end, find what was not noticed. Not watched: see `ignore`.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, cast

from sandherd.contracts.events import ArtifactRef, EventData
from sandherd.contracts.events.tools import AgentFileEdited
from sandherd.telemetry import logs
from sandherd_worker.diffs import preview
from sandherd_worker.redaction import Redactor
from sandherd_worker.sound import sound
from sandherd_worker.tree import FileChange, WorkTree

MAX_INLINE_CHARS: Final = 50_000
_LARGE_CHARS: Final = 5000
_SETTLE: Final = 0.2
"""How long changes are collected before a look, in seconds."""
_EVERY: Final = 30.0
"""A look without a reason, in seconds."""
_REST: Final = 10
"""Between two looks there is this many times what the last one took, so that a large tree costs at most a tenth."""
_TOGETHER: Final = 32

Say = Callable[[EventData], Awaitable[None]]
PutAside = Callable[[bytes], Awaitable[ArtifactRef]]


class FileTracker:
    """Watches one work tree from the base line to the last look."""

    def __init__(self, work_dir: Path, store: Path, redactor: Redactor, say: Say, put_aside: PutAside) -> None:
        self._work_dir = work_dir
        self._tree = WorkTree(work_dir, store)
        self._redactor = redactor
        self._say = say
        self._put_aside = put_aside
        self._stopping = asyncio.Event()
        self._noticed = asyncio.Event()
        self._looking = asyncio.Lock()
        self._watching: list[asyncio.Task[None]] = []
        self.changed: set[str] = set()
        """Every path that was ever said to have changed."""

    async def start(self) -> None:
        """Take the base line, then watch. What is there now is nobody's change."""
        await asyncio.to_thread(self._tree.take_baseline)
        self._watching = [asyncio.create_task(self._notice()), asyncio.create_task(self._look_again())]

    async def finish(self) -> None:
        """Stop watching, and look at everything a last time. Raises `SpoolError`."""
        self._stopping.set()
        self._noticed.set()
        results = await asyncio.gather(*self._watching, return_exceptions=True)
        await self.look()
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def abandon(self) -> None:
        """Stop watching, without a last look."""
        self._stopping.set()
        for task in self._watching:
            task.cancel()

    async def look(self) -> None:
        """Compare, and say what has changed; one look after the other."""
        async with self._looking:
            changes = await asyncio.to_thread(self._tree.changes)
            for group in _groups(changes):
                await asyncio.gather(*[self._say(event) for event in [await self._event(change) for change in group]])

    async def _look_again(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            await _set_within(self._noticed, _EVERY)
            await _set_within(self._stopping, _SETTLE)
            if self._stopping.is_set():
                return
            self._noticed.clear()
            began = loop.time()
            await self.look()
            await _set_within(self._stopping, _REST * (loop.time() - began))

    async def _notice(self) -> None:
        """Wake the look when inotify tells of a change.

        Where it can't (no watches left, a name that is no UTF-8), a look now and then remains. What breaks within
        watchfiles comes as a group.
        """
        from watchfiles import awatch

        changes = awatch(
            self._work_dir,
            watch_filter=lambda _change, path: not self._passes_over(path),
            debounce=100,
            step=25,
            stop_event=self._stopping,
            recursive=True,
            ignore_permission_denied=True,
        )
        try:
            async for _ in changes:
                self._noticed.set()
        except* (OSError, RuntimeError) as errors:
            reasons = [repr(error) for error in errors.exceptions]
            logs.get("files").warning("changes are only seen now and then", errors=reasons, every_seconds=_EVERY)

    def _passes_over(self, path: str) -> bool:
        return self._tree.passes_over(os.path.relpath(path, self._work_dir))

    async def _event(self, found: FileChange) -> AgentFileEdited:
        diff = None if found.change.diff is None else self._redactor.text(sound(found.change.diff))
        size = len(diff or "")
        reference = await self._put_aside((diff or "").encode()) if size > MAX_INLINE_CHARS else None
        self.changed.add(found.path)
        return AgentFileEdited(
            file_path=sound(found.path),
            change_type=cast('Literal["created", "modified", "deleted", "renamed"]', found.kind),
            previous_path=None if found.previous_path is None else sound(found.previous_path),
            binary=found.change.binary,
            lines_added=found.change.added,
            lines_removed=found.change.removed,
            diff_preview=found.change.note if diff is None else preview(diff),
            full_diff=diff if size <= MAX_INLINE_CHARS else None,
            full_diff_available=size > _LARGE_CHARS,
            full_diff_size=size,
            full_diff_ref=reference,
        )


def _groups(changes: list[FileChange]) -> Iterator[list[FileChange]]:
    for start in range(0, len(changes), _TOGETHER):
        yield changes[start : start + _TOGETHER]


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, but not longer."""
    if seconds <= 0:
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
