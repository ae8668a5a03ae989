"""Downloads: the space for files that are being sent, and the response that frees it, however it ends."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, Final

from starlette.responses import StreamingResponse

from gateway.request_guard import Receive, Scope, Send
from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code, Problem

SPACE: Final = 256 * 1024 * 1024
"""Maximum size of all files that a replica is sending, in bytes: they are in its temporary folder, complete."""
SHARE: Final = SPACE // 2
"""Maximum size of those of one project, and so of one file."""
_PIECE: Final = 64 * 1024
_WAIT: Final = 5.0


class DownloadSpace:
    """The space of one replica, by project."""

    def __init__(self) -> None:
        self._used: Counter[str] = Counter()

    @contextmanager
    def reserved(self, project: str, size: int) -> Iterator[None]:
        """Space for a file meanwhile. Raises `HerdError`: `too_large`, or `busy` while others are sent."""
        if size > SHARE:
            text = f"the artifact has {size} bytes; over HTTP it may have {SHARE}"
            raise HerdError.of(Code.TOO_LARGE, text, remedy="get it with `sandherd artifacts get`")
        if self._used[project] + size > SHARE or self._used.total() + size > SPACE:
            text = "other artifacts are being downloaded"
            remedy = "retry after the time in Retry-After"
            raise HerdError(Problem(code=Code.BUSY, message=text, remedy=remedy, retry_after_seconds=_WAIT))
        self._used[project] += size
        try:
            yield
        finally:
            self._used[project] -= size
            self._used += Counter()  # leaves out projects without any


class FileResponse(StreamingResponse):
    """A file as a response. What `held` has is closed when the response has ended, also if it has not begun."""

    def __init__(self, file: IO[bytes], held: ExitStack, headers: dict[str, str]) -> None:
        super().__init__(_pieces(file), headers=headers, media_type="application/octet-stream")
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        with self._held:
            await super().__call__(scope, receive, send)


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    file.seek(0)
    while piece := file.read(_PIECE):
        yield piece
