"""The right to write to a bare repository. There is one writer at a time among all processes of this machine."""

import asyncio
import fcntl
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TRIALS: Final = "merge-"
"""The prefix of folders in the repository with the objects of a trial merge."""
QUARANTINES: Final = "incoming-"
"""The prefix of folders in the repository with objects that are not checked yet."""
_RETRY_SECONDS: Final = 0.1
_LEFTOVERS: Final = (
    "*.lock",
    "gc.pid",
    "refs/**/*.lock",
    "objects/**/tmp_*",
    f"{TRIALS}*",
    f"{QUARANTINES}*",
    "lfs/tmp_*",
)


@dataclass
class _Hold:
    """A held lock. `descriptor` is that of its file; None as soon as the lock is released."""

    descriptor: int | None


_HOLDS: Final[ContextVar[tuple[_Hold, ...]]] = ContextVar("holds", default=())
"""The locks that the current task holds."""


def held_descriptors() -> tuple[int, ...]:
    """The descriptors of the locks that the current task holds, for the processes that write on its behalf.

    A process that inherits them also holds the locks. If this process is killed, that process holds them until it ends.
    """
    return tuple(hold.descriptor for hold in _HOLDS.get() if hold.descriptor is not None)


class WriterLock:
    """The lock of one repository: a file beside it (flock(2)).

    The kernel releases the lock when its holder and all processes of `run_git` that the holder has started have ended.
    """

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._local_lock = asyncio.Lock()

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Hold the lock. First, the files are removed that a killed writer has left in the repository."""
        async with self._local_lock:
            self._repository.parent.mkdir(parents=True, exist_ok=True)
            descriptor = await self._lock()
            hold = _Hold(descriptor)
            _HOLDS.set((*_HOLDS.get(), hold))
            try:
                await asyncio.to_thread(_remove_leftovers, self._repository)
                yield
            finally:
                hold.descriptor = None
                _HOLDS.set(tuple(one for one in _HOLDS.get() if one is not hold))
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process that is being ended may still have it open
                os.close(descriptor)

    def touch(self) -> None:
        """Store that the repository is needed now, as the time of the lock's file, if there is one."""
        with suppress(FileNotFoundError):
            os.utime(self._file)

    def touched_at(self) -> float:
        """When `touch` was called last, in seconds since the epoch; 0 if there is no file."""
        try:
            return self._file.stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def remove(self) -> None:
        """Remove the file of the lock, which the caller holds, with its repository. Waiting writers lock a new file."""
        self._file.unlink(missing_ok=True)

    @property
    def _file(self) -> Path:
        return self._repository.with_suffix(".lock")

    async def _lock(self) -> int:
        """Lock the file and return its descriptor. Only a replaced spawner or its git may hold it, for a short time."""
        while True:
            descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(descriptor, self._file):
                    return descriptor
            except BlockingIOError:
                pass
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
            await asyncio.sleep(_RETRY_SECONDS)  # waiting in a thread could not be cancelled


def _is_at(descriptor: int, file: Path) -> bool:
    """Whether the open file is still the one at this path: a holder of the lock may have removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False


def _remove_leftovers(repository: Path) -> None:
    """Remove lock files, incomplete packs and temporary folders. The lock is held, so a killed writer left them."""
    for pattern in _LEFTOVERS:
        for leftover in repository.glob(pattern):
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink(missing_ok=True)
