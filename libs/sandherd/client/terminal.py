"""What a sandbox's terminal shows, from the beginning and as it grows.

The live subject says only that there is more; what there is comes from event-ingest in the stream's order, so that
nothing is shown twice, left out or torn in the middle of a character.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from sandherd.client.errors import ServiceAwayError
from sandherd.client.link import Link, Standing
from sandherd.client.target import Target
from sandherd.contracts.requests import AskOutput, OutputChunk
from sandherd.contracts.states import SANDBOX_ENDED
from sandherd.contracts.subjects import OUTPUT

LOOK_SECONDS: Final = 2.0
SETTLE_SECONDS: Final = 0.1
PAGE: Final = 100
"""The last page is read again when there is more, so it is small."""


class OutputReader:
    """Reads on from where it stopped. Raises `HerdError` if event-ingest refuses or is not there."""

    def __init__(self, link: Link, sandbox: str) -> None:
        self._link = link
        self._sandbox = sandbox
        self._cursor: str | None = None
        self._seen = 0

    async def more(self) -> AsyncIterator[OutputChunk]:
        """What there is now beyond what was read."""
        while True:
            page = await self._link.ask(AskOutput(sandbox=self._sandbox, cursor=self._cursor, limit=PAGE))
            for chunk in page.chunks:
                if chunk.stream_sequence > self._seen:
                    self._seen = chunk.stream_sequence
                    yield chunk
            if page.next_cursor is None or page.next_cursor == self._cursor or not page.chunks:
                return
            self._cursor = page.next_cursor


class OutputFollowing:
    """The output of a sandbox until it has ended. With event-ingest away it waits for it."""

    def __init__(self, link: Link, target: Target) -> None:
        self._link = link
        self._target = target
        self._reader = OutputReader(link, target.entity)
        self._more = asyncio.Event()

    async def chunks(self) -> AsyncIterator[OutputChunk]:
        """Every piece, oldest first. Raises `HerdError` (`not_found`) if there is no such sandbox."""
        subject = OUTPUT.pattern({"project": self._target.project, "sandbox": self._target.entity})
        subscription = await self._link.listen(subject, self._hear)
        try:
            ended = False
            while not ended:
                ended = await self._has_ended()
                async for chunk in self._read(last=ended):
                    yield chunk
                if not ended:
                    await self._wait()
        finally:
            await subscription.unsubscribe()

    async def _hear(self, _subject: str, _document: bytes) -> None:
        self._more.set()

    async def _read(self, *, last: bool) -> AsyncIterator[OutputChunk]:
        try:
            async for chunk in self._reader.more():
                yield chunk
        except ServiceAwayError:
            # Until the end there is another time: the broker keeps it for event-ingest.
            if last:
                raise

    async def _has_ended(self) -> bool:
        try:
            standing: Standing = await self._link.standing(self._target)
        except ServiceAwayError:
            return False
        return standing.state in SANDBOX_ENDED

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._more.wait()
        except TimeoutError:
            return
        self._more.clear()
        # The broker tells listeners a moment before the stream has it.
        await asyncio.sleep(SETTLE_SECONDS)
