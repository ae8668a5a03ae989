"""Follows a bucket by direct reads: every entry that is in it, and each change, in the order of revisions.

The monitor's credential may create no consumer, so it can't use a watch of nats-py.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import nats.errors
import nats.js.errors

from sandherd.bus.connection import Bus
from sandherd.bus.direct_get import StoredMessage, read_batch
from sandherd.telemetry import logs

_POLL: Final = 0.5
"""Seconds between two reads."""
_BATCH: Final = 500
_BATCH_BYTES: Final = 8 * 1024 * 1024
_EMPTY_READS: Final = 3
"""After this number, what is missing has expired: a replica may lag behind its leader."""
_EMPTY_PAUSE: Final = 0.1
FAULTS: Final = (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError, KeyError, ValueError)
OnEntry = Callable[[str, bytes | None, int], None]
"""Called with the key, the value, or None if it was deleted, and the revision."""
_log: Final = logs.get("budgets")


class BucketWatch:
    """Calls `on_entry` for each entry. One that expires, or was deleted while it did not follow, is not reported."""

    def __init__(self, bus: Bus, bucket: str, on_entry: OnEntry, changed: asyncio.Event | None = None) -> None:
        self._bus = bus
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}."
        self._on_entry = on_entry
        self._seen = 0
        self._one_at_a_time = asyncio.Lock()
        self.changed = changed or asyncio.Event()
        """Set after each change; several watches may have one."""

    async def follow(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                while await self._read():
                    pass
            except FAULTS as error:
                _log.warning("bucket not read, retrying", stream=self._stream, error=repr(error))
            await asyncio.sleep(_POLL)

    async def catch_up(self) -> None:
        """Return when everything that is now in the bucket was reported. Raises one of `FAULTS`."""
        last = (await self._bus.js.stream_info(self._stream)).state.last_seq
        empty = 0
        while self._seen < last and empty < _EMPTY_READS:
            if not await self._read():
                empty += 1
                await asyncio.sleep(_EMPTY_PAUSE)

    async def _read(self) -> int:
        """Report the next entries. Returns how many."""
        async with self._one_at_a_time:
            batch = await read_batch(
                self._bus, self._stream, f"{self._prefix}>", first=self._seen + 1, limit=_BATCH, max_bytes=_BATCH_BYTES
            )
            for message in batch:
                self._report(message)
        return len(batch)

    def _report(self, message: StoredMessage) -> None:
        deleted = "KV-Operation" in (message.headers or {})
        self._on_entry(message.subject.removeprefix(self._prefix), None if deleted else message.data, message.sequence)
        self._seen = message.sequence
        self.changed.set()
