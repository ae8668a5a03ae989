"""Reads key-value buckets with direct gets: first all entries, then each change, in the order of revisions.

The monitor's credential may not create consumers, so it can't use a watch of nats-py.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Final, NamedTuple

from sandherd.bus.broker_errors import READ_ERRORS
from sandherd.bus.connection import Bus
from sandherd.bus.direct_get import read_batch
from sandherd.bus.stream_bounds import read_bounds
from sandherd.concurrency import sleep_aligned
from sandherd.contracts.headers import KV_OPERATION
from sandherd.telemetry import logs

_POLL_SECONDS: Final = 0.5
"""Seconds between two reads."""
_BATCH_SIZE: Final = 500
_BATCH_BYTES: Final = 8 * 1024 * 1024
_MAX_EMPTY_READS: Final = 3
"""Number of empty reads after which missing revisions count as expired. One empty read is not enough, because a replica
of the stream may lag behind its leader."""
_EMPTY_PAUSE_SECONDS: Final = 0.1
"""Seconds between two of these reads."""
_log: Final = logs.get("budgets")


class BucketEntry(NamedTuple):
    """An entry of a bucket. `value` is None if the entry was deleted or has expired."""

    key: str
    value: bytes | None
    revision: int


class BucketReader:
    """Reads the entries of a bucket whose keys match `keys`, from the first revision on, and each change once."""

    def __init__(self, bus: Bus, bucket: str, keys: str = ">") -> None:
        self._bus = bus
        self.stream: Final = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}."
        self._keys = keys
        self.position = 0
        """The revision of the last entry that was read."""

    async def next_batch(self) -> list[BucketEntry]:
        """The next entries; empty if there are none. Raises one of `READ_ERRORS`."""
        subject = f"{self._prefix}{self._keys}"
        batch = await read_batch(
            self._bus, self.stream, subject, first=self.position + 1, limit=_BATCH_SIZE, max_bytes=_BATCH_BYTES
        )
        if batch:
            self.position = batch[-1].sequence
        return [
            BucketEntry(
                message.subject.removeprefix(self._prefix),
                message.data if message.data and KV_OPERATION not in (message.headers or {}) else None,
                message.sequence,
            )
            for message in batch
        ]

    async def remaining(self) -> list[BucketEntry]:
        """All entries after `position`. Raises one of `READ_ERRORS`."""
        entries: list[BucketEntry] = []
        while batch := await self.next_batch():
            entries += batch
        return entries


class BucketWatch:
    """Calls `on_entry` with the key, the value and the revision of each entry, and again for each change.

    The expiry of an entry is not reported. A deletion is not reported if its delete marker has expired.
    """

    def __init__(
        self,
        bus: Bus,
        bucket: str,
        on_entry: Callable[[str, bytes | None, int], None],
        changed: asyncio.Event | None = None,
    ) -> None:
        self._bus = bus
        self._reader = BucketReader(bus, bucket)
        self._on_entry = on_entry
        self._read_lock = asyncio.Lock()
        self.changed = changed or asyncio.Event()
        """Set after each change. Several watches may share it."""

    async def follow(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                while await self._read_batch():
                    pass
            except READ_ERRORS as error:
                _log.warning("bucket not read, retrying", stream=self._reader.stream, error=repr(error))
            await sleep_aligned(_POLL_SECONDS)

    async def catch_up(self) -> datetime:
        """Wait until all entries that are in the bucket now are reported. Returns the broker's time of the request.

        Raises one of `READ_ERRORS`.
        """
        bounds = await read_bounds(self._bus, self._reader.stream)
        empty = 0
        while self._reader.position < bounds.last and empty < _MAX_EMPTY_READS:
            if not await self._read_batch():
                empty += 1
                await asyncio.sleep(_EMPTY_PAUSE_SECONDS)
        return bounds.requested_at

    async def _read_batch(self) -> int:
        """Report the next entries. Returns their number."""
        async with self._read_lock:
            batch = await self._reader.next_batch()
            for entry in batch:
                self._on_entry(*entry)
                self.changed.set()
        return len(batch)
