"""The output of a sandbox's terminal, from the beginning, and live.

The live subject only signals new output; the output is read from event-ingest in the stream's order, so that nothing
is duplicated, skipped or split within a character.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from sandherd.client.errors import ServiceUnavailableError
from sandherd.client.events.protocols import EntityStatus, HerdConnection
from sandherd.client.events.target import Target
from sandherd.contracts.requests import GetOutput, OutputChunk
from sandherd.contracts.states import SANDBOX_ENDED
from sandherd.contracts.subjects import OUTPUT

POLL_SECONDS: Final = 2.0
SETTLE_SECONDS: Final = 0.1
"""The time from a live message until the stream has its output."""
PAGE_SIZE: Final = 100
"""The number of chunks in a page. It is small, because the last page is read again when there is more output."""


class OutputReader:
    """Reads output incrementally. Raises `HerdError` if event-ingest refuses or is unavailable."""

    def __init__(self, link: HerdConnection, sandbox: str) -> None:
        self._link = link
        self._sandbox = sandbox
        self._cursor: str | None = None
        self._last_sequence = 0

    async def new_chunks(self) -> AsyncIterator[OutputChunk]:
        """The output that was stored since the last call; at the first call, all output."""
        while True:
            page = await self._link.request(GetOutput(sandbox=self._sandbox, cursor=self._cursor, limit=PAGE_SIZE))
            for chunk in page.chunks:
                if chunk.stream_sequence > self._last_sequence:
                    self._last_sequence = chunk.stream_sequence
                    yield chunk
            if page.next_cursor is None or page.next_cursor == self._cursor or not page.chunks:
                return
            self._cursor = page.next_cursor


class OutputFollower:
    """The output of a sandbox until it has ended. Waits for event-ingest while it is unavailable."""

    def __init__(self, link: HerdConnection, target: Target) -> None:
        self._link = link
        self._target = target
        self._reader = OutputReader(link, target.entity)
        self._signalled = asyncio.Event()

    async def chunks(self) -> AsyncIterator[OutputChunk]:
        """Every chunk, oldest first. Raises `HerdError` (`not_found`) if there is no such sandbox."""
        subject = OUTPUT.pattern({"project": self._target.project, "sandbox": self._target.entity})
        subscription = await self._link.listen(subject, self._receive)
        try:
            ended = False
            while not ended:
                ended = await self._has_ended()
                async for chunk in self._read_output(last=ended):
                    yield chunk
                if not ended:
                    await self._wait()
        finally:
            await subscription.unsubscribe()

    async def _receive(self, _subject: str, _document: bytes) -> None:
        self._signalled.set()

    async def _read_output(self, *, last: bool) -> AsyncIterator[OutputChunk]:
        try:
            async for chunk in self._reader.new_chunks():
                yield chunk
        except ServiceUnavailableError:
            # Retried until the sandbox has ended, because the broker stores the output for event-ingest.
            if last:
                raise

    async def _has_ended(self) -> bool:
        try:
            status: EntityStatus = await self._link.entity_status(self._target)
        except ServiceUnavailableError:
            return False
        return status.state in SANDBOX_ENDED

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await self._signalled.wait()
        except TimeoutError:
            return
        self._signalled.clear()
        # Subscribers receive the message a moment before it is stored in the stream.
        await asyncio.sleep(SETTLE_SECONDS)
