"""Measures the waiting commands of each project in COMMANDS. All projects share this stream, and it may become full."""

import asyncio
import random
from collections.abc import Collection
from typing import Final

import nats.js.errors

from sandherd.bus.connection import Bus
from sandherd.bus.kv import next_immutable_message
from sandherd.contracts.streams import BY_STREAM
from sandherd.service.stream_usage import StreamFill, read_fill
from spawner.sandboxes.command_share import StoredCommands, above_share, candidates, sampled

_STREAM: Final = "COMMANDS"
_MESSAGE_OVERHEAD_BYTES: Final = 100
"""Bytes that the broker stores with a message in addition to its data, roughly."""


class CommandBacklog:
    """Measures waiting commands. `limit` is a project's share in bytes."""

    def __init__(self, bus: Bus, limit: int) -> None:
        self._bus = bus
        self._limit = limit

    async def projects_above_share(self) -> Collection[str]:
        """The projects whose waiting commands use more than their share.

        Sends only one request to the broker while all projects together do not use more than one share. Raises
        nats-py's errors, and `TimeoutError`.
        """
        fill = await read_fill(self._bus, _STREAM)
        if fill.held <= self._limit:
            return set()
        info = await self._bus.js.stream_info(_STREAM, subjects_filter=BY_STREAM[_STREAM].subjects[0])
        stored = StoredCommands(fill.held, info.state.subjects or {}, self._bus.client.max_payload)
        sizes = {subject: await self._sampled_sizes(subject, fill) for subject in candidates(stored, self._limit)}
        return above_share(stored, sizes, self._limit).keys()

    async def _sampled_sizes(self, subject: str, fill: StreamFill) -> list[int]:
        sequences = sampled(fill.first, fill.last, random.random())
        found = await asyncio.gather(*(self._message_size(subject, sequence) for sequence in sequences))
        return [size for size in found if size is not None]

    async def _message_size(self, subject: str, sequence: int) -> int | None:
        try:
            message = await next_immutable_message(self._bus, _STREAM, subject, sequence)
        except nats.js.errors.NotFoundError:
            return None
        return len(message.data or b"") + _MESSAGE_OVERHEAD_BYTES
