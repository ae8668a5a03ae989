"""Stores the work tree and the agent's terminal output for the next attempt."""

import asyncio
import tempfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import IO, Final

from sandherd.archives.ignore import ignored_in
from sandherd.archives.writer import ArchiveSummary, ArchiveTooLargeError, DeadlinePassedError, pack
from sandherd.contracts.events.access import AgentTranscriptSaved, AgentWorkSaved
from sandherd_worker.artifact_records import TEXT
from sandherd_worker.assignment import Assignment
from sandherd_worker.emitter import Emitter
from sandherd_worker.spool import Spool
from sandherd_worker.worker_exit import StopRequest

_ARCHIVE: Final = "application/gzip"
SHARE_OF_GRACE: Final = 0.6
"""The share of the runtime's grace period in which an archive may be written; the rest is for uploading it."""
SHARE_OF_FREE_SPACE: Final = 0.4
"""The share of the spool's free space that an archive may take; the rest is for events, and for a second copy of the
archive, which is on disk for a short time.
"""
_MAX_TRANSCRIPT_BYTES: Final = 4 * 1024 * 1024


def time_to_save(assignment: Assignment, stop: StopRequest) -> Callable[[], bool]:
    """A function that returns whether it is too late to continue an archive. Thread-safe."""
    return lambda: stop.past(assignment.stop_grace * SHARE_OF_GRACE)


class OutputTranscript:
    """The end of the agent's terminal output, stored in two files, so that it is available if the worker is lost."""

    def __init__(self, state_dir: Path) -> None:
        self._new, self._old = state_dir / "transcript.new", state_dir / "transcript.old"
        self._file: IO[bytes] | None = None
        self._size = 0

    def add(self, shown: bytes) -> None:
        """Store output. Errors are ignored, because the spool reports a full disk."""
        try:
            if self._file is None or self._size >= _MAX_TRANSCRIPT_BYTES:
                self._rotate()
            if self._file is not None:
                self._size += self._file.write(shown)
        except OSError:
            return

    def read(self) -> bytes:
        """The last 4 MiB of the stored output."""
        parts = [path.read_bytes() for path in (self._old, self._new) if path.exists()]
        return b"".join(parts)[-_MAX_TRANSCRIPT_BYTES:]

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file, self._size = None, _MAX_TRANSCRIPT_BYTES

    def _rotate(self) -> None:
        if self._file is not None:
            self._file.close()
            self._new.replace(self._old)
        self._file = self._new.open("wb", buffering=0)
        self._size = 0


class WorkSaver:
    """Stores the work tree and the transcript as artifacts through the spool, and publishes events for them."""

    def __init__(self, assignment: Assignment, emitter: Emitter, spool: Spool) -> None:
        self._assignment, self._emitter, self._spool = assignment, emitter, spool

    async def save_work(self, late: Callable[[], bool]) -> None:
        """Store the work tree, or publish the reason why it is not stored. Raises `SpoolError`.

        Does nothing if the work tree is empty, or if storing it is disabled.
        """
        if self._assignment.max_work_bytes == 0:
            return
        try:
            with tempfile.TemporaryFile(dir=self._assignment.state_dir) as file:
                event = await self._work(file, late)
        except OSError as error:
            event = AgentWorkSaved(left_out=f"it could not be packed: {error.strerror or error}")
        if event is not None:
            await self._emitter.emit(event, use_reserve=True)

    async def save_transcript(self, content: bytes) -> None:
        """Store terminal output, unless it is empty or too large for the spool. Raises `SpoolError`."""
        if not content or len(content) > self._spool.free_bytes * SHARE_OF_FREE_SPACE:
            return
        reference = await self._emitter.store_file(BytesIO(content), TEXT)
        await self._emitter.emit(AgentTranscriptSaved(artifact=reference))

    async def _work(self, file: IO[bytes], late: Callable[[], bool]) -> AgentWorkSaved | None:
        limit = min(self._assignment.max_work_bytes, int(self._spool.free_bytes * SHARE_OF_FREE_SPACE))
        try:
            packed = await asyncio.to_thread(_pack, self._assignment.work_dir, file, limit, late)
        except ArchiveTooLargeError:
            return AgentWorkSaved(left_out=f"compressed it is larger than the limit of {limit} bytes")
        except DeadlinePassedError:
            return AgentWorkSaved(left_out="the sandbox had to end before all of it was stored")
        if packed.files == 0:
            return None
        file.seek(0)
        reference = await self._emitter.store_file(file, _ARCHIVE)
        return AgentWorkSaved(artifact=reference, files=packed.files, left_out=_unread_note(packed))


def _pack(work_dir: Path, file: IO[bytes], limit: int, late: Callable[[], bool]) -> ArchiveSummary:
    return pack(work_dir, file, limit=limit, skips=ignored_in(work_dir, with_git=True), late=late, compress=True)


def _unread_note(packed: ArchiveSummary) -> str | None:
    if not packed.unread:
        return None
    return f"{len(packed.unread)} entries could not be read, the first of them {packed.unread[0]!r}"
