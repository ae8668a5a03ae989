"""Stores an agent's session as an artifact at the end of every turn, so that another attempt can resume it."""

import asyncio
import codecs
import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from sandherd.contracts.events.access import AgentTranscriptSaved
from sandherd.contracts.events.agent import AgentError
from sandherd_worker.artifact_records import TEXT
from sandherd_worker.assignment import Assignment
from sandherd_worker.emitter import Emitter
from sandherd_worker.spool import Spool
from sandherd_worker.stream_redaction import StreamRedactor

DRIVER: Final = "driver"
"""The driver's own directory, in the worker's state directory."""
_CHUNK_BYTES: Final = 64 * 1024
_MAX_BYTES: Final = 64 * 1024 * 1024
_SHARE_OF_FREE_SPACE: Final = 0.5
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class SessionStore:
    """Stores the sessions of one agent."""

    def __init__(self, assignment: Assignment, emitter: Emitter, spool: Spool) -> None:
        self._assignment, self._emitter, self._spool = assignment, emitter, spool
        self._stored: dict[str, str] = {}

    async def store(self, path: Path, session: str) -> None:
        """Store the session's file without its secrets, unless it is unchanged. Raises `SpoolError`.

        An `OSError` is not raised, but published as `AgentError`.
        """
        try:
            with tempfile.TemporaryFile(dir=self._assignment.state_dir) as file:
                digest = await asyncio.to_thread(self._copy, path, file)
                if self._stored.get(session) == digest:
                    return
                file.seek(0)
                reference = await self._emitter.store_file(file, TEXT)
        except OSError as error:
            text = f"the session's transcript could not be stored: {error.strerror or error}"
            await self._emitter.emit(AgentError(error=text, phase="transcript"))
            return
        self._stored[session] = digest
        await self._emitter.emit(AgentTranscriptSaved(session_id=session, artifact=reference))

    def _copy(self, path: Path, to: IO[bytes]) -> str:
        """Copy the file redacted and return its SHA-256 digest.

        Raises `OSError` if it is not a regular file, is too large, or is outside the directories where an agent may
        store a session.
        """
        home = self._assignment.inherited.get("HOME")
        roots = [self._assignment.state_dir / DRIVER, self._assignment.work_dir, *([Path(home)] if home else [])]
        whole = _resolved(path)
        if not any(whole.is_relative_to(root.resolve()) for root in roots) or _is_workers_own(
            whole, self._assignment.state_dir
        ):
            raise PermissionError(errno.EACCES, "it is outside the directories where an agent may store a session")
        digest, limit = hashlib.sha256(), min(_MAX_BYTES, int(self._spool.free_bytes * _SHARE_OF_FREE_SPACE))
        for piece in self._redacted(whole):
            digest.update(piece)
            to.write(piece)
            if to.tell() > limit:
                raise OSError(errno.EFBIG, f"it is larger than {limit} bytes")
        return digest.hexdigest()

    def _redacted(self, path: Path) -> Iterator[bytes]:
        stream = StreamRedactor(self._emitter.redactor)
        decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        with os.fdopen(os.open(path, _FLAGS), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            while piece := file.read(_CHUNK_BYTES):
                yield stream.feed(decoder.decode(piece)).encode("utf-8", "surrogateescape")
        yield (stream.feed(decoder.decode(b"", final=True)) + stream.finish()).encode("utf-8", "surrogateescape")


def _resolved(path: Path) -> Path:
    """The resolved path. Raises `OSError`, also for an invalid path, because the agent may have sent any text."""
    try:
        return path.resolve(strict=True)
    except (ValueError, RuntimeError) as error:  # a NUL, a lone surrogate; a loop of symbolic links
        raise OSError(errno.EINVAL, f"it is not a valid path: {error}") from None


def _is_workers_own(path: Path, state_dir: Path) -> bool:
    """Whether the path is in the worker's state directory, but outside the driver's directory."""
    state = state_dir.resolve()
    return path.is_relative_to(state) and not path.is_relative_to(state / DRIVER)
