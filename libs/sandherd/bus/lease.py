"""A lease: the right of one replica at a time to do something, with a time to live and a fencing token.

The holder renews its key in the bucket `leases` by compare-and-set, each time with a new time to live (`Nats-TTL`; a
plain update would drop it, and the lock would never expire). The broker removes a key that is not renewed.
"""

import asyncio
import time
from collections.abc import Awaitable
from typing import Final

import nats.errors
import nats.js.errors

from sandherd.bus.connection import Bus
from sandherd.concurrency import cancel_and_wait, run_until_first
from sandherd.telemetry import logs

_BUCKET: Final = "leases"
_SAFETY_MARGIN: Final = 1.0
"""Seconds by which the holder stops using a lease before the broker removes it."""
_DELETIONS: Final = ("DEL", "PURGE")
_TTL: Final = "Nats-TTL"
_UNHELD_TTLS: Final = 3.0
"""Times to live without a visible holder after which readiness reports a problem: no replica can take the lease."""
_log: Final = logs.get("lease")


class LeaseLostError(Exception):
    """This replica no longer holds the lease; another replica may act now."""


class Lease:
    """The right to do one thing. Run the work by `run_with()`, and `check()` before each of its actions."""

    def __init__(self, bus: Bus, key: str, holder: str, ttl: float = 5.0) -> None:
        self._bus = bus
        self._subject = f"$KV.{_BUCKET}.{key}"
        self._holder = holder
        self._ttl = ttl
        self._revision = 0
        self._held_until = 0.0
        self._taken = asyncio.Event()
        self._seen_at = time.monotonic()
        self._seen_revision = 0
        self.key = key
        self.fence = 0
        """The fencing token: greater than that of every earlier holder."""

    @property
    def held(self) -> bool:
        """Whether this replica holds it now. False after the process was paused for longer than the lease."""
        return time.monotonic() < self._held_until

    def check(self) -> None:
        """Raise `LeaseLostError` unless the lease is held."""
        if not self.held:
            raise LeaseLostError(self.key)

    def problem(self) -> str | None:
        """For readiness: a problem if no replica was seen to hold the lease for three times its time to live."""
        unheld = time.monotonic() - self._seen_at
        if self.held or unheld < _UNHELD_TTLS * self._ttl:
            return None
        return f"no replica was seen to hold the lease {self.key} for {unheld:.0f} s"

    async def wait_held(self) -> None:
        """Return as soon as the lease is held."""
        while not self.held:
            self._taken.clear()
            await self._taken.wait()

    async def run_with(self, *work: Awaitable[object]) -> None:
        """Run the lease and this work, until the first ends or fails. The work has ended before the lease is released.

        Raises what the first raises.
        """
        renewing = asyncio.ensure_future(self.run())
        try:
            await run_until_first(asyncio.shield(renewing), *work)
        finally:
            await cancel_and_wait([renewing])

    async def run(self) -> None:
        """Take the lease when it is free, renew it while it is held, and release it when cancelled."""
        try:
            while True:
                await self._try_once()
                await asyncio.sleep(self._ttl / 3)
        finally:
            await self._release()

    async def _try_once(self) -> None:
        was_held = self.held
        try:
            revision = self._revision if was_held else await self._free_revision()
            if revision is not None:
                await self._write(revision, fresh=not was_held)
        except (TimeoutError, nats.errors.Error, nats.js.errors.Error, OSError) as error:
            self._lose(error)

    async def _free_revision(self) -> int | None:
        """The revision to overwrite if the key is free, or None while another replica holds it."""
        try:
            last = await self._bus.js.get_last_msg(f"KV_{_BUCKET}", self._subject)
        except nats.js.errors.NotFoundError:
            return 0
        headers = last.headers or {}
        # The bucket of version 0.1 had markers of expired keys.
        deleted = headers.get("KV-Operation") in _DELETIONS or "Nats-Marker-Reason" in headers
        # A key without a time to live is not a valid lease: it would never expire.
        if deleted or _TTL not in headers:
            return last.seq
        self._set_revision(last.seq or 0)
        return None

    def _set_revision(self, revision: int) -> None:
        """Note a new revision: the holder renewed it. An unchanged revision means that no replica renews the lease."""
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
        self._set_revision(ack.seq)
        # If it lapsed before the reply came, its work was abandoned and begins again, as after another holder.
        fresh = fresh or not self.held
        # Counted from before the write was sent, less a margin: the lease must end here before it expires there.
        self._held_until = sent + self._ttl - min(_SAFETY_MARGIN, self._ttl / 4)
        if fresh:
            self.fence = ack.seq
            _log.info("lease acquired", lease=self.key, fence=self.fence)
        self._taken.set()

    def _lose(self, error: Exception) -> None:
        if not isinstance(error, nats.js.errors.Error):
            # No reply: the lease may still be held, until `_held_until`.
            return
        if self._held_until:
            _log.warning("lease lost", lease=self.key, error=repr(error))
        self._held_until = 0.0

    async def _release(self) -> None:
        if not self.held or not self._bus.connected:
            return
        self._held_until = 0.0
        headers = {"KV-Operation": "DEL", "Nats-Expected-Last-Subject-Sequence": str(self._revision)}
        try:
            await self._bus.js.publish(self._subject, b"", timeout=1, headers=headers)
        except (TimeoutError, nats.errors.Error, nats.js.errors.Error, OSError) as error:
            _log.info("lease not released, it will expire", lease=self.key, error=repr(error))
