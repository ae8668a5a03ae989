"""The right to write to a bare repository: one writer at a time, over all processes of this machine."""

import asyncio
import fcntl
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

TRIALS: Final = "merge-"
"""The prefix of folders in the repository with the objects of a trial merge."""
QUARANTINES: Final = "incoming-"
"""The prefix of folders in the repository with objects that are not checked yet."""
_RETRY_SECONDS: Final = 0.1
_LEFTOVERS: Final = ("*.lock", "refs/**/*.lock", "objects/**/tmp_*", f"{TRIALS}*", f"{QUARANTINES}*")


class WriterLock:
    """The lock of one repository: a file beside it (flock(2)), which the kernel releases when its holder ends."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._here = asyncio.Lock()

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Hold the lock. What a killed writer has left in the repository is removed first."""
        async with self._here:
            self._repository.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._repository.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                await _lock(descriptor)
                await asyncio.to_thread(_remove_leftovers, self._repository)
                yield
            finally:
                os.close(descriptor)


async def _lock(descriptor: int) -> None:
    """Lock the file. Another process has it for moments only: the one that this one replaces."""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(_RETRY_SECONDS)  # waiting in a thread could not be cancelled
        else:
            return


def _remove_leftovers(repository: Path) -> None:
    """No other process writes now, so lock files, incomplete packs and folders are of a writer that was killed."""
    for pattern in _LEFTOVERS:
        for left in repository.glob(pattern):
            if left.is_dir():
                shutil.rmtree(left)
            else:
                left.unlink(missing_ok=True)
