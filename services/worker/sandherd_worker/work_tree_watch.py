"""Notices that something may have changed in a work tree. What has changed is found by comparing the whole tree.

The comparison itself adds the watches, each before it lists the directory. So whatever is created while there is no
watch yet is found by that comparison, and whatever happens later raises an event: no directory can be created too fast.

Nothing depends on a watch: a comparison without a notification follows after a while, sooner if not all directories are
watched (the kernel limits watches and instances for each user), and the last one at the end of the attempt.
"""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sandherd.telemetry import logs
from sandherd_worker.inotify import ENDED, OVERFLOW, Inotify, InotifyEvent, notices

_REMOVED: Final = frozenset({errno.ENOENT, errno.ENOTDIR})
_UNREADABLE: Final = errno.EACCES
"""A directory that can't be watched can't be listed either; the watch above it notices when that changes."""
_MAX_DRAINED: Final = 64
"""Maximum of reads that drop events before a comparison: an agent may raise events faster than they are read."""
_PAUSE: Final = 0.05
"""How long no events are read after events about ignored files, in seconds: many of them may change at once."""
_log: Final = logs.get("tree_watch")


See = Callable[[str], None]
"""Called with each directory before it is listed: a path with a slash, empty for the root of the tree."""


def unwatched(_directory: str) -> None:
    """Does nothing: for a comparison without a watch."""


class TreeWatch:
    """The watches of one work tree. Only `see` may be called in another thread, during a comparison."""

    def __init__(self, root: Path, ignores: Callable[[str], bool], noticed: Callable[[], None]) -> None:
        self._root = root
        self._ignores = ignores
        self._noticed = noticed
        self._inotify: Inotify | None = None
        self._directories: dict[int, str] = {}
        """The paths of the directories of the last comparison, with a slash, by the numbers of their watches."""
        self._seen: dict[int, str] = {}
        self._failure: OSError | None = None
        self._reported = self._reported_loss = self._doubted = False
        self._quiet = self._was_complete = False
        self._armed = False
        self._pausing: asyncio.TimerHandle | None = None

    @property
    def complete(self) -> bool:
        """Whether all directories of the last comparison are watched, and no change was missed so far."""
        return self._inotify is not None and self._failure is None and not self._doubted

    def begin(self) -> None:
        """Begin a comparison: drop earlier events, because it finds their changes."""
        self._disarm()
        self._was_complete = self.complete
        self._seen, self._failure = {}, None
        try:
            self._inotify = self._inotify or Inotify()
        except OSError as error:
            self._failure = error
            return
        reads = 0
        while reads < _MAX_DRAINED and self._inotify.read():
            reads += 1
        self._quiet = reads == 0

    def see(self, directory: str) -> None:
        """The comparison is about to list this directory: a path with a slash, empty for the tree itself."""
        if self._inotify is None:
            return
        try:
            self._seen[self._inotify.watch(self._root / directory)] = directory
        except OSError as error:
            # The watch of the parent notices the removal of a directory; the root of the tree has no such watch.
            if not directory or (error.errno not in _REMOVED and error.errno != _UNREADABLE):
                self._failure = error

    def end(self) -> None:
        """End a comparison: read events from now on, first those since its beginning."""
        self._directories = self._seen
        if self._failure is not None and not self._reported:
            _log.warning("file watch is not complete, comparing more often", error=str(self._failure))
        self._reported = self._failure is not None
        self._arm()

    def missed(self) -> None:
        """Note a change that was found without a notification. The watch is incomplete then, unless there is one now.

        Some file systems and ways to write raise no events. A comparison that begins a watch may find earlier changes.
        """
        if (
            self._was_complete
            and self.complete
            and self._quiet
            and self._inotify is not None
            and not self._inotify.waiting()
        ):
            self._doubted = True
            _log.warning("file watch missed a change, comparing more often")

    def close(self) -> None:
        """End all watches."""
        self._disarm()
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    def _arm(self) -> None:
        self._pausing = None
        if self._inotify is not None and not self._armed:
            asyncio.get_running_loop().add_reader(self._inotify.descriptor, self._read)
            self._armed = True

    def _disarm(self) -> None:
        if self._pausing is not None:
            self._pausing.cancel()
            self._pausing = None
        if self._inotify is not None and self._armed:
            asyncio.get_running_loop().remove_reader(self._inotify.descriptor)
        self._armed = False

    def _read(self) -> None:
        """Read events. Reading stops until the next comparison, or for `_PAUSE` if all are about ignored files."""
        assert self._inotify is not None
        events = dict.fromkeys(notices(self._inotify.read()))
        if not events:
            return
        self._disarm()
        if any(self._counts(event) for event in events):
            self._noticed()
        else:
            self._pausing = asyncio.get_running_loop().call_later(_PAUSE, self._arm)

    def _counts(self, event: InotifyEvent) -> bool:
        if event.flags & OVERFLOW:
            if not self._reported_loss:
                _log.warning("file events were lost, comparing all files")
            self._reported_loss = True
            return True
        directory = self._directories.get(event.watch)
        if directory is None or event.flags & ENDED:
            return directory == ""  # the watch of its parent notices the end of another directory
        path = f"{directory}{event.name}".rstrip("/")
        return not path or not self._ignores(os.path.normpath(path))
