"""A lease: the right of one replica at a time to do something, with a time to live and a fencing token.

The holder renews its key in the bucket `leases` by compare-and-set, each time with a new time to live (`Nats-TTL`).
After a plain update, the key would have none, and the lease would never expire. The broker removes a key that is not
renewed.
"""

import asyncio
import time
from collections.abc import Awaitable
from typing import Final

import nats.js.errors

from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.bus.kv import revision_headers
from sandherd.concurrency import cancel_and_wait, run_until_first, sleep_aligned
from sandherd.contracts.headers import KV_OPERATION, LIFETIME
from sandherd.telemetry import logs

_BUCKET: Final = "leases"
_SAFETY_MARGIN: Final = 1.0
"""Seconds before the removal by the broker at which the holder stops using a lease."""
_DELETE_OPERATIONS: Final = ("DEL", "PURGE")
_MAX_UNHELD_TTLS: Final = 3.0
"""If a lease has no holder for this multiple of its time to live, readiness reports a problem."""
_log: Final = logs.get("lease")


class LeaseLostError(Exception):
    """This replica no longer holds the lease; another replica may act now."""


class Lease:
    """The lease with one key. Run the work by `run_with()`, and call `check()` before each action of the work.

    `ttl` is the time to live in seconds.
    """

    def __init__(self, bus: Bus, key: str, holder: str, ttl: float = 5.0) -> None:
        self._bus = bus
        self._subject = f"$KV.{_BUCKET}.{key}"
        self._holder = holder
        self._ttl = ttl
        self._revision = 0
        self._held_until = 0.0
        self._acquired = asyncio.Event()
        self._seen_at = time.monotonic()
        self._seen_revision = 0
        self.key = key
        self.fence = 0
        """The fencing token: greater than the token of every earlier holder."""

    @property
    def held(self) -> bool:
        """Whether this replica holds the lease now. False if the process was paused for longer than `ttl`."""
        return time.monotonic() < self._held_until

    def check(self) -> None:
        """Raise `LeaseLostError` unless the lease is held."""
        if not self.held:
            raise LeaseLostError(self.key)

    def problem(self) -> str | None:
        """The problem for readiness: no replica has held the lease for three times its time to live. Else None."""
        unheld = time.monotonic() - self._seen_at
        if self.held or unheld < _MAX_UNHELD_TTLS * self._ttl:
            return None
        return f"no replica was seen to hold the lease {self.key} for {unheld:.0f} s"

    async def wait_held(self) -> None:
        """Return as soon as the lease is held."""
        while not self.held:
            self._acquired.clear()
            await self._acquired.wait()

    async def run_with(self, *work: Awaitable[object]) -> None:
        """Hold the lease and run this work until one of them ends or fails. Then release the lease.

        Raises the exception of the part that ended first.
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
                await sleep_aligned(_renewal_interval(self._ttl))
        finally:
            await self._release()

    async def _try_once(self) -> None:
        was_held = self.held
        try:
            revision = self._revision if was_held else await self._free_revision()
            if revision is not None:
                await self._write(revision, acquired=not was_held)
        except BROKER_ERRORS as error:
            self._handle_failure(error)

    async def _free_revision(self) -> int | None:
        """The revision of the key, which is needed to overwrite it. None while another replica holds the lease."""
        try:
            last = await self._bus.js.get_last_msg(f"KV_{_BUCKET}", self._subject)
        except nats.js.errors.NotFoundError:
            return 0
        headers = last.headers or {}
        # The bucket of version 0.1 has markers of expired keys.
        deleted = headers.get(KV_OPERATION) in _DELETE_OPERATIONS or "Nats-Marker-Reason" in headers
        # A key without a time to live is not a valid lease: it would never expire.
        if deleted or LIFETIME not in headers:
            return last.seq
        self._note_revision(last.seq or 0)
        return None

    def _note_revision(self, revision: int) -> None:
        """Note the revision of the key, which changes at each renewal."""
        if revision != self._seen_revision:
            self._seen_revision = revision
            self._seen_at = time.monotonic()

    async def _write(self, revision: int, *, acquired: bool) -> None:
        sent = time.monotonic()
        headers = revision_headers(revision, f"{max(1, round(self._ttl))}s")
        ack = await self._bus.js.publish(self._subject, self._holder.encode(), timeout=self._ttl / 3, headers=headers)
        self._revision = ack.seq
        self._note_revision(ack.seq)
        # If the lease expired before the reply was received, it counts as acquired again and gets a new fencing token.
        acquired = acquired or not self.held
        # The time is measured from before the write, less a margin, so that it ends here before it ends at the broker.
        self._held_until = sent + self._ttl - min(_SAFETY_MARGIN, self._ttl / 4)
        if acquired:
            self.fence = ack.seq
            _log.info("lease acquired", lease=self.key, fence=self.fence)
        self._acquired.set()

    def _handle_failure(self, error: Exception) -> None:
        if not isinstance(error, nats.js.errors.Error):
            # Without a reply from the broker, the lease is held until `_held_until`.
            return
        if self._held_until:
            _log.warning("lease lost", lease=self.key, error=repr(error))
        self._held_until = 0.0

    async def _release(self) -> None:
        if not self.held or not self._bus.connected:
            return
        self._held_until = 0.0
        headers = {KV_OPERATION: "DEL"} | revision_headers(self._revision)
        try:
            await self._bus.js.publish(self._subject, b"", timeout=1, headers=headers)
        except BROKER_ERRORS as error:
            _log.info("lease not released, it will expire", lease=self.key, error=repr(error))


def _renewal_interval(ttl: float) -> float:
    """Seconds between two renewals: at most a third of the time to live, and a multiple of half a second if possible.

    Then the renewals of leases with different times to live share wakeups.
    """
    return ttl / 3 // 0.5 * 0.5 or ttl / 3
