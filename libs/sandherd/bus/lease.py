"""A lease: what only one replica may do at a time, with a time to live and a fencing token.

The holder renews its key in the bucket `leases` by compare-and-set, each time with a new time to live (`Nats-TTL`; a
plain update would drop it and keep the lock for ever). The broker removes a key that nobody renews.
"""

import asyncio
import time
from typing import Final

import nats.errors
import nats.js.errors

from sandherd.bus.connection import Bus
from sandherd.telemetry import logs

_BUCKET: Final = "leases"
_SECOND: Final = 1.0
_GONE: Final = ("DEL", "PURGE")
_TTL: Final = "Nats-TTL"
_PATIENCE: Final = 3.0
"""So many times to live without a holder, something keeps every replica from the lease."""
_log: Final = logs.get("lease")


class LeaseLostError(Exception):
    """This replica holds the lease no more; what it was about to do is another's."""


class Lease:
    """The right to do one thing. Run `keep()` beside the work, and `check()` before each act of it."""

    def __init__(self, bus: Bus, key: str, holder: str, ttl: float = 5.0) -> None:
        self._bus = bus
        self._subject = f"$KV.{_BUCKET}.{key}"
        self._holder = holder
        self._ttl = ttl
        self._revision = 0
        self._good_until = 0.0
        self._taken = asyncio.Event()
        self._seen_at = time.monotonic()
        self._seen_revision = 0
        self.key = key
        self.fence = 0
        """The token of this holding: greater than that of every holding before."""

    @property
    def held(self) -> bool:
        """Whether it is ours at this moment. A process that was stopped for longer than the lease finds it is not."""
        return time.monotonic() < self._good_until

    def check(self) -> None:
        """Raise `LeaseLostError` unless the lease is held."""
        if not self.held:
            raise LeaseLostError(self.key)

    def problem(self) -> str | None:
        """For readiness: that neither we nor anybody we can see has held the lease for three times its life."""
        unheld = time.monotonic() - self._seen_at
        if self.held or unheld < _PATIENCE * self._ttl:
            return None
        return f"no replica is seen to hold the lease {self.key} for {unheld:.0f} s"

    async def wait_held(self) -> None:
        """Return as soon as the lease is held."""
        while not self.held:
            self._taken.clear()
            await self._taken.wait()

    async def keep(self) -> None:
        """Take the lease when it is free, renew it while it is ours, and give it back when cancelled."""
        try:
            while True:
                await self._try_once()
                await asyncio.sleep(self._ttl / 3)
        finally:
            await self._give_back()

    async def _try_once(self) -> None:
        was_held = self.held
        try:
            revision = self._revision if was_held else await self._free_revision()
            if revision is not None:
                await self._write(revision, fresh=not was_held)
        except (TimeoutError, nats.errors.Error, nats.js.errors.Error, OSError) as error:
            self._lose(error)

    async def _free_revision(self) -> int | None:
        """The revision to write over if the key is free, or None while another holds it."""
        try:
            last = await self._bus.js.get_last_msg(f"KV_{_BUCKET}", self._subject)
        except nats.js.errors.NotFoundError:
            return 0
        headers = last.headers or {}
        gone = headers.get("KV-Operation") in _GONE or "Nats-Marker-Reason" in headers
        # What was written without a time to live is no holding: it would lock the lease for ever.
        if gone or _TTL not in headers:
            return last.seq
        self._see(last.seq or 0)
        return None

    def _see(self, revision: int) -> None:
        """Another holds it, if it has renewed since we looked last; the same revision for long is nobody's."""
        if revision != self._seen_revision:
            self._seen_revision = revision
            self._seen_at = time.monotonic()

    async def _write(self, revision: int, *, fresh: bool) -> None:
        sent = time.monotonic()
        headers = {
            "Nats-Expected-Last-Subject-Sequence": str(revision),
            _TTL: f"{max(1, round(self._ttl))}s",
        }
        ack = await self._bus.js.publish(self._subject, self._holder.encode(), timeout=self._ttl / 3, headers=headers)
        self._revision = ack.seq
        self._see(ack.seq)
        # Counted from before the write was sent, and a second short: the broker's clock must never be the later one.
        self._good_until = sent + self._ttl - min(_SECOND, self._ttl / 4)
        if fresh:
            self.fence = ack.seq
            _log.info("lease taken", lease=self.key, fence=self.fence)
        self._taken.set()

    def _lose(self, error: Exception) -> None:
        if not isinstance(error, nats.js.errors.Error):
            # Not answered: it may still be ours, for as long as was promised.
            return
        if self._good_until:
            _log.warning("lease lost", lease=self.key, error=repr(error))
        self._good_until = 0.0

    async def _give_back(self) -> None:
        if not self.held or not self._bus.connected:
            return
        self._good_until = 0.0
        headers = {"KV-Operation": "DEL", "Nats-Expected-Last-Subject-Sequence": str(self._revision)}
        try:
            await self._bus.js.publish(self._subject, b"", timeout=1, headers=headers)
        except (TimeoutError, nats.errors.Error, nats.js.errors.Error, OSError) as error:
            _log.info("lease not given back; it runs out by itself", lease=self.key, error=repr(error))
