"""What the next attempt may want of this one: its work tree, and what its agent said."""

import asyncio
import tempfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import IO, Final

from sandherd.contracts.events.access import AgentTranscriptSaved, AgentWorkSaved
from sandherd_worker.archive import Packed, TooLargeError, TooLateError, pack
from sandherd_worker.artifacts import TEXT
from sandherd_worker.assignment import Assignment
from sandherd_worker.emitter import Emitter
from sandherd_worker.ignore import GIT, Ignored
from sandherd_worker.spool import Spool
from sandherd_worker.stopping import Stop

_ARCHIVE: Final = "application/gzip"
_SHARE_OF_GRACE: Final = 0.6
"""How much of the runtime's grace may be gone when the archive is made; the rest is for bringing it up."""
_SHARE_OF_ROOM: Final = 0.4
"""How much of what the spool still takes an archive may have; the rest is for what is said, and for the archive itself,
which is on the disk twice for a moment."""
_LONGEST_TRANSCRIPT: Final = 4 * 1024 * 1024


def time_to_save(who: Assignment, stop: Stop) -> Callable[[], bool]:
    """Tells whether it is too late to go on making an archive. Any thread may ask."""
    return lambda: stop.past(who.stop_grace * _SHARE_OF_GRACE)


class Transcript:
    """The last of what the agent's terminal showed, kept in two files so that it survives its worker."""

    def __init__(self, state_dir: Path) -> None:
        self._new, self._old = state_dir / "transcript.new", state_dir / "transcript.old"
        self._file: IO[bytes] | None = None
        self._size = 0

    def add(self, shown: bytes) -> None:
        """Keep it; without a word if the disk is full, for the spool will say so."""
        try:
            if self._file is None or self._size >= _LONGEST_TRANSCRIPT:
                self._turn()
            if self._file is not None:
                self._size += self._file.write(shown)
        except OSError:
            return

    def read(self) -> bytes:
        """The last 4 MiB."""
        parts = [path.read_bytes() for path in (self._old, self._new) if path.exists()]
        return b"".join(parts)[-_LONGEST_TRANSCRIPT:]

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
        self._file, self._size = None, _LONGEST_TRANSCRIPT

    def _turn(self) -> None:
        if self._file is not None:
            self._file.close()
            self._new.replace(self._old)
        self._file = self._new.open("wb", buffering=0)
        self._size = 0


class Keeping:
    """Puts by, as artifacts through the spool, and says so."""

    def __init__(self, who: Assignment, emitter: Emitter, spool: Spool) -> None:
        self._who, self._emitter, self._spool = who, emitter, spool

    async def save_work(self, late: Callable[[], bool]) -> None:
        """Put the work tree by, or say why not; nothing if nothing is in it or none is wanted. Raises `SpoolError`."""
        if self._who.max_work_bytes == 0:
            return
        try:
            with tempfile.TemporaryFile(dir=self._who.state_dir) as file:
                said = await self._work(file, late)
        except OSError as error:
            said = AgentWorkSaved(left_out=f"it could not be packed: {error.strerror or error}")
        if said is not None:
            await self._emitter.emit(said, last_words=True)

    async def save_transcript(self, content: bytes) -> None:
        """Put by what was shown; nothing if nothing was. Raises `SpoolError`."""
        if not content or len(content) > self._spool.room * _SHARE_OF_ROOM:
            return
        reference = await self._emitter.put_file_aside(BytesIO(content), TEXT)
        await self._emitter.emit(AgentTranscriptSaved(artifact=reference))

    async def _work(self, file: IO[bytes], late: Callable[[], bool]) -> AgentWorkSaved | None:
        limit = min(self._who.max_work_bytes, int(self._spool.room * _SHARE_OF_ROOM))
        try:
            packed = await asyncio.to_thread(_pack, self._who.work_dir, file, limit, late)
        except TooLargeError:
            return AgentWorkSaved(left_out=f"compressed it is larger than the {limit} bytes that are kept of it")
        except TooLateError:
            return AgentWorkSaved(left_out="the sandbox had to end before all of it was put by")
        if packed.files == 0:
            return None
        file.seek(0)
        reference = await self._emitter.put_file_aside(file, _ARCHIVE)
        return AgentWorkSaved(artifact=reference, files=packed.files, left_out=_unread(packed))


def _pack(work_dir: Path, file: IO[bytes], limit: int, late: Callable[[], bool]) -> Packed:
    return pack(work_dir, file, limit=limit, skips=_passing_over(work_dir), late=late, compress=True)


def _passing_over(work_dir: Path) -> Callable[[str, bool], bool]:
    """What is left out: what git ignores, and nothing of what git itself keeps."""
    ignored = Ignored()
    ignored.read(work_dir, "", _names(work_dir))

    def skips(path: str, directory: bool) -> bool:  # noqa: FBT001  # as `pack` asks
        if GIT in path.split("/"):
            return False
        if ignored(path, directory=directory):
            return True
        if directory:
            ignored.read(work_dir, path, _names(work_dir / path))
        return False

    return skips


def _names(directory: Path) -> list[str]:
    try:
        return [path.name for path in directory.iterdir()]
    except OSError:
        return []


def _unread(packed: Packed) -> str | None:
    if not packed.unread:
        return None
    return f"{len(packed.unread)} entries could not be read, the first of them {packed.unread[0]!r}"
