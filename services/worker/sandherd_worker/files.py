"""What becomes of the files of the work tree, said as events, whoever changed them: a tool or a shell.

A change is noticed by inotify, and what it was is found by comparing; a look at everything now and then, and a last
one at the end, find what was not noticed. Not watched: see `ignore`.

However many files change at once, few of them are held at a time: each is read when those before it are said.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final, Literal, cast

from sandherd.contracts.events import ArtifactRef, EventData
from sandherd.contracts.events.agent import AgentError
from sandherd.contracts.events.tools import AgentFileEdited
from sandherd.telemetry import logs
from sandherd_worker.diffs import preview
from sandherd_worker.redaction import Redactor
from sandherd_worker.sound import sound
from sandherd_worker.tree import MOST_FILES, FileChange, WorkTree

MAX_INLINE_CHARS: Final = 50_000
_LARGE_CHARS: Final = 5000
_SETTLE: Final = 0.2
"""How long changes are collected before a look, in seconds."""
_EVERY: Final = 30.0
"""A look without a reason, in seconds."""
_REST: Final = 10
"""Between two looks there is this many times what the last one cost, so that a large tree takes at most a tenth."""
_IDLE: Final = 100
"""The same for looks without a reason: at most a hundredth of one core."""
_TOGETHER: Final = 32
_TOGETHER_CHARS: Final = 1024 * 1024
"""How many changes are said together, and how long their diffs may be."""
_WATCH_AGAIN: Final = 1.0
_WATCH_AGAIN_MOST: Final = 64.0
"""How long after the watch broke it is begun anew, in seconds: twice as long each time."""
_HEARD_MS: Final = 1000
_STEP_MS: Final = 50

Say = Callable[[EventData], Awaitable[object]]
PutAside = Callable[[bytes], Awaitable[ArtifactRef]]
_Told = tuple[FileChange, str | None]
"""A change, and its diff without secrets."""


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
        self._watching: list[asyncio.Task[None]] = []
        self._cost = 0.0
        """What the last look took of a core, in seconds."""
        self._told_of_too_many = self._told_of_unseen = False
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
        await self.look(last=True)
        self._tree.close()
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def abandon(self) -> None:
        """Stop watching, without a last look."""
        self._stopping.set()
        for task in self._watching:
            task.cancel()

    async def look(self, *, last: bool = False) -> None:
        """Compare, and publish what has changed. The `last` look includes files under temporary names."""
        self._cost = 0.0
        changes = self._tree.changes(last=last)
        while group := await asyncio.to_thread(self._take, changes):
            await asyncio.gather(*[self._say(event) for event in [await self._event(*change) for change in group]])
        if self._tree.too_many and not self._told_of_too_many:
            self._told_of_too_many = True
            await self._complain(f"there are more than {MOST_FILES} files in the work tree; what changes in the rest")
        if (unseen := self._tree.unseen) is not None and not self._told_of_unseen:
            self._told_of_unseen = True
            await self._complain(f"the directory {sound(unseen)!r} can't be read; what changes in such a one")

    async def _complain(self, what: str) -> None:
        """Said once of each: the same would be found by every look."""
        await self._say(AgentError(error=self._redactor.text(f"{what} is not told"), phase="files"))

    def _take(self, changes: Iterator[FileChange]) -> list[_Told]:
        """The next few changes, with their diffs as they may be told."""
        began = time.thread_time()
        group: list[_Told] = []
        chars = 0
        for found in islice(changes, _TOGETHER):
            diff = None if found.change.diff is None else self._redactor.text(sound(found.change.diff))
            group.append((found, diff))
            chars += len(diff or "")
            if chars >= _TOGETHER_CHARS:
                break
        self._cost += time.thread_time() - began
        return group

    async def _look_again(self) -> None:
        while not self._stopping.is_set():
            await _set_within(self._noticed, max(_EVERY, _IDLE * self._cost))
            await _set_within(self._stopping, _SETTLE)
            if self._stopping.is_set():
                return
            self._noticed.clear()
            await self.look()
            await _set_within(self._stopping, _REST * self._cost)

    async def _notice(self) -> None:
        """Wake the look when inotify tells of a change, and when the watch begins: before that nothing is told.

        Where it breaks (no watches left, a name that is no UTF-8), it begins anew, and meanwhile a look now and then
        remains. What breaks within watchfiles comes as a group.
        """
        again = _WATCH_AGAIN
        while not self._stopping.is_set():
            try:
                await self._watch()
            except* (OSError, RuntimeError) as errors:
                reasons = [repr(error) for error in errors.exceptions]
                logs.get("files").warning("the watch broke", errors=reasons, again_seconds=again)
            await _set_within(self._stopping, again)
            again = min(2 * again, _WATCH_AGAIN_MOST)

    async def _watch(self) -> None:
        from watchfiles import awatch

        changes = awatch(
            self._work_dir,
            watch_filter=lambda _change, path: not self._passes_over(path),
            debounce=100,
            step=_STEP_MS,
            stop_event=self._stopping,
            rust_timeout=_HEARD_MS,
            yield_on_timeout=True,
            recursive=True,
            ignore_permission_denied=True,
        )
        begun = False
        async for found in changes:
            if found or not begun:
                self._noticed.set()
            begun = True

    def _passes_over(self, path: str) -> bool:
        return self._tree.passes_over(os.path.relpath(path, self._work_dir))

    async def _event(self, found: FileChange, diff: str | None) -> AgentFileEdited:
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


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, but not longer."""
    if seconds <= 0:
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
