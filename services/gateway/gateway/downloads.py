"""Downloads: the space for files that are being sent, and the response that releases the space when it ends."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, Final

from starlette.responses import StreamingResponse

from gateway.request_guard import Receive, Scope, Send
from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code, Problem

MAX_BYTES: Final = 256 * 1024 * 1024
"""Maximum total size in bytes of the files that a replica is sending. Each file is complete, in memory or in a
temporary file, before it is sent."""
MAX_BYTES_OF_PROJECT: Final = MAX_BYTES // 2
"""Maximum total size in bytes of the files of one project. So one file has at most this size, too."""
_PIECE_BYTES: Final = 64 * 1024
_RETRY_AFTER_SECONDS: Final = 5.0


class DownloadSpace:
    """The space for downloads in one replica, by project."""

    def __init__(self) -> None:
        self._used: Counter[str] = Counter()

    @contextmanager
    def reserve(self, project: str, size: int) -> Iterator[None]:
        """Reserve space for a file within the context.

        Raises `HerdError`: `too_large`, or `busy` while other files are sent.
        """
        if size > MAX_BYTES_OF_PROJECT:
            text = f"the artifact has {size} bytes; over HTTP the maximum is {MAX_BYTES_OF_PROJECT} bytes"
            raise HerdError.of(Code.TOO_LARGE, text, remedy="get it with `sandherd artifacts get`")
        if self._used[project] + size > MAX_BYTES_OF_PROJECT or self._used.total() + size > MAX_BYTES:
            text = "other artifacts are being downloaded"
            remedy = "retry after the time in Retry-After"
            raise HerdError(
                Problem(code=Code.BUSY, message=text, remedy=remedy, retry_after_seconds=_RETRY_AFTER_SECONDS)
            )
        self._used[project] += size
        try:
            yield
        finally:
            self._used[project] -= size
            self._used += Counter()  # removes projects without downloads


class FileResponse(StreamingResponse):
    """A file as a response. `resources` are closed when the response has ended, or could not begin."""

    def __init__(self, file: IO[bytes], resources: ExitStack, headers: dict[str, str]) -> None:
        super().__init__(_pieces(file), headers=headers, media_type="application/octet-stream")
        self._resources = resources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        with self._resources:
            await super().__call__(scope, receive, send)


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    file.seek(0)
    while piece := file.read(_PIECE_BYTES):
        yield piece
