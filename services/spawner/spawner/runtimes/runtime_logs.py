"""The log of a sandbox's first process, which its runtime stores. The log is from a sandbox, so it is not trusted.

Not every runtime stores logs. Those that do are instances of `LogSource`.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol, runtime_checkable

from spawner.runtimes.errors import RuntimeFailedError, RuntimeFault

_CHUNK_BYTES: Final = 64 * 1024
_TAIL_BYTES: Final = 4 * 1024 * 1024
"""How many bytes at the end of a file are searched for the last lines."""
_FOLLOW_SECONDS: Final = 0.5
"""The interval at which a followed file is read again."""


@dataclass(frozen=True, kw_only=True)
class LogQuery:
    """The requested part of a log."""

    lines: int | None = None
    """The number of requested lines at the end; None: all lines that the runtime still has."""
    follow: bool = False
    """Whether to continue until the process has ended."""


@runtime_checkable
class LogSource(Protocol):
    """Additional interface of a runtime, or of a provider of boxes, that stores logs."""

    def logs(self, name: str, query: LogQuery) -> AsyncIterator[bytes]:
        """The standard output and error of a sandbox's first process, oldest first, in pieces of any size.

        Available also after the process has ended, as long as the sandbox exists. Close the iterator to stop following.
        Raises `RuntimeFailedError`; a provider raises `ProviderError`.
        """


async def file_log(file: Path, query: LogQuery, is_alive: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
    """The log in a file, followed while `is_alive` is true. Raises `RuntimeFailedError` if there is no file."""
    try:
        log = await asyncio.to_thread(file.open, "rb")
    except FileNotFoundError:
        raise RuntimeFailedError(RuntimeFault.LOST, "its worker has written no log") from None
    with log:
        if query.lines is not None:
            yield last_lines(await asyncio.to_thread(_read_tail, log), query.lines)
        while True:
            ended = not is_alive()  # checked before reading, so that all output before the process's end is read
            while chunk := await asyncio.to_thread(log.read, _CHUNK_BYTES):
                yield chunk
            if ended or not query.follow:
                return
            await asyncio.sleep(_FOLLOW_SECONDS)


def _read_tail(log: IO[bytes]) -> bytes:
    log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
    return log.read(_TAIL_BYTES)


def last_lines(text: bytes, lines: int) -> bytes:
    """The last lines of a text, which may end with an incomplete line. Pure."""
    return b"".join(text.splitlines(keepends=True)[-lines:]) if lines else b""
