"""An agent's session, put by as an artifact at every turn's end: what another attempt can go on from."""

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
from sandherd_worker.artifacts import TEXT
from sandherd_worker.assignment import Assignment
from sandherd_worker.emitter import Emitter
from sandherd_worker.spool import Spool
from sandherd_worker.stream_redaction import StreamRedactor

DRIVER: Final = "driver"
"""The driver's own directory, in the worker's state."""
_PIECE: Final = 64 * 1024
_LARGEST: Final = 64 * 1024 * 1024
_SHARE_OF_ROOM: Final = 0.5
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Sessions:
    """Keeps the sessions of one agent."""

    def __init__(self, who: Assignment, emitter: Emitter, spool: Spool) -> None:
        self._who, self._emitter, self._spool = who, emitter, spool
        self._kept: dict[str, str] = {}

    async def keep(self, path: Path, session: str) -> None:
        """Put this file by without its secrets, unless it is what was kept last. What goes wrong is said.

        Raises `SpoolError`.
        """
        try:
            with tempfile.TemporaryFile(dir=self._who.state_dir) as file:
                digest = await asyncio.to_thread(self._copy, path, file)
                if self._kept.get(session) == digest:
                    return
                file.seek(0)
                reference = await self._emitter.put_file_aside(file, TEXT)
        except OSError as error:
            text = f"the session's transcript could not be put by: {error.strerror or error}"
            await self._emitter.emit(AgentError(error=text, phase="transcript"))
            return
        self._kept[session] = digest
        await self._emitter.emit(AgentTranscriptSaved(session_id=session, artifact=reference))

    def _copy(self, path: Path, to: IO[bytes]) -> str:
        """Its digest. Raises `OSError` for what is no file, too large, or not where an agent may keep one."""
        home = self._who.inherited.get("HOME")
        roots = [self._who.state_dir / DRIVER, self._who.work_dir, *([Path(home)] if home else [])]
        whole = _resolved(path)
        if not any(whole.is_relative_to(root.resolve()) for root in roots) or _within(whole, self._who.state_dir):
            raise PermissionError(errno.EACCES, "it is not where an agent may keep one")
        digest, limit = hashlib.sha256(), min(_LARGEST, int(self._spool.room * _SHARE_OF_ROOM))
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
                raise OSError(errno.EINVAL, "it is no file")
            while piece := file.read(_PIECE):
                yield stream.feed(decoder.decode(piece)).encode("utf-8", "surrogateescape")
        yield (stream.feed(decoder.decode(b"", final=True)) + stream.finish()).encode("utf-8", "surrogateescape")


def _resolved(path: Path) -> Path:
    """Where it leads. Raises `OSError`, also for what is no path at all: an agent may have said anything."""
    try:
        return path.resolve(strict=True)
    except (ValueError, RuntimeError) as error:  # a NUL, half a character; links that go round in a circle
        raise OSError(errno.EINVAL, f"it is no path: {error}") from None


def _within(path: Path, state_dir: Path) -> bool:
    """Whether it is the worker's own: in its state, and not in the driver's part of it."""
    state = state_dir.resolve()
    return path.is_relative_to(state) and not path.is_relative_to(state / DRIVER)
