"""The uplink: publishes the spool's records in order, within a window, until each is acknowledged.

A record that was not acknowledged is sent again under the same message id, so that the broker stores it once. After a
failure all sends in flight are cancelled, and the first record is sent alone before the window opens again: a broker
that has just recovered must not store a later record while it still refuses an earlier record. Records that it has
stored behind a refused record are not sent again: a nearly full stream stores a small record and refuses a large one.
"""

import asyncio
import time
from collections import deque
from typing import Any, Final, NamedTuple

from sandherd.backoff import Backoff
from sandherd.bus.connection import Bus, LeaderlessError, PublishFailedError, PublishRefusedError, StreamFullError
from sandherd.bus.publish_retries import failures_per_log_line, publish_delay
from sandherd.bus.publish_window import PublishWindow
from sandherd.bus.rate_limit import Rate, RateLimiter
from sandherd.telemetry import logs
from sandherd_worker.spool import Spool
from sandherd_worker.spool_reader import SpooledRecord, SpoolReader

WINDOW_MESSAGES: Final = 256
WINDOW_BYTES: Final = 2 * 1024 * 1024
_REFUSED_BACKOFF: Final = Backoff(base=1.0, cap=30.0)
"""A refused record would block all records behind it; it is retried slowly, because permissions can be fixed."""
_POLL_INTERVAL: Final = 0.1
_REPLIES_SECONDS: Final = 5.0
"""How long a broker that has refused a record may take to reply on the records behind it."""
PACE: Final = Rate(per_second=800, burst=8000)
"""Below a sandbox's publish limit (`SANDHERD_FLOOD_MESSAGES` is at least 1,000 per second, with a burst of 10 seconds'
worth), so that a full spool after an outage does not count as a flood.
"""
_log: Final = logs.get("uplink")


class _InFlight(NamedTuple):
    """A record that was sent and is not yet acknowledged."""

    spooled: SpooledRecord
    reply: asyncio.Future[Any]


class Uplink:
    """Publishes one spool. It outlives individual connections."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._reader = SpoolReader(spool)
        self._to_resend: deque[SpooledRecord] = deque()
        """Records that were sent but not acknowledged. They are sent before all others."""
        self._in_flight: deque[_InFlight] = deque()
        self._in_flight_bytes = 0
        self._stored_numbers: set[int] = set()
        """Numbers of records that the broker has stored behind a record that it has not stored."""
        self._failures = 0
        self._leaderless: LeaderlessError | None = None
        self._pace = RateLimiter(PACE)
        self._paced_until = 0.0
        self._wake = asyncio.Event()
        spool.listen(self._wake.set)

    @property
    def in_flight(self) -> int:
        """The number of records that are sent but not acknowledged."""
        return len(self._in_flight)

    async def run(self, bus: Bus) -> None:
        """Publish over this connection until cancelled."""
        while True:
            try:
                await self._send_all(bus)
            except PublishFailedError as error:
                await self._wait(error, publish_delay(error, self._failures))
            except PublishRefusedError as error:
                _log.error("event refused by broker, later events wait", error=str(error))
                await self._wait(error, _REFUSED_BACKOFF.delay(self._failures))

    def close(self) -> None:
        """Close the spool's reader."""
        self._reader.close()

    async def _send_all(self, bus: Bus) -> None:
        """Send until something fails; afterwards nothing is in flight."""
        while not bus.connected:  # noqa: ASYNC110  # the client has no event for it
            await asyncio.sleep(_POLL_INTERVAL)
        window, connection = await bus.publish_window(), bus.reconnects
        alone, self._leaderless = True, None
        try:
            while True:
                self._wake.clear()
                alone = not self._acknowledge_completed() and alone
                if not bus.connected or bus.reconnects != connection:
                    raise PublishFailedError("the connection was lost")
                if self._leaderless is not None:
                    # Don't wait for what was sent to the lost leader: the new one must store nothing behind it first.
                    raise self._leaderless
                while self._send_next(window, 1 if alone else WINDOW_MESSAGES):
                    pass
                await self._wait_for_change()
        except (PublishRefusedError, StreamFullError):
            await self._collect_replies()
            raise
        finally:
            self._cancel_in_flight()

    def _acknowledge_completed(self) -> bool:
        """Report acknowledged records to the spool, in order. Returns whether any were. Raises the first error."""
        acknowledged = None
        try:
            while self._in_flight and self._in_flight[0].reply.done():
                self._in_flight[0].reply.result()
                acknowledged = self._in_flight.popleft().spooled
                self._stored_numbers.discard(acknowledged.number)
                self._in_flight_bytes -= len(acknowledged.record.payload)
        finally:
            if acknowledged is not None:
                self._failures = 0
                self._spool.acknowledge(acknowledged.number)
        return acknowledged is not None

    def _send_next(self, window: PublishWindow, limit: int) -> bool:
        """Send the next record if there is one, and fewer than `limit` are in flight. Returns whether it was sent."""
        now = time.monotonic()
        if len(self._in_flight) >= limit or self._in_flight_bytes >= WINDOW_BYTES or now < self._paced_until:
            return False
        spooled = self._to_resend.popleft() if self._to_resend else self._reader.next()
        if spooled is None:
            return False
        self._paced_until = now + self._pace.excess(None, now)
        record, loop = spooled.record, asyncio.get_running_loop()
        reply: asyncio.Future[Any]
        if spooled.number in self._stored_numbers:
            reply = loop.create_future()
            reply.set_result(None)
        else:
            reply = window.publish(record.subject, record.payload, msg_id=record.msg_id)
        reply.add_done_callback(self._on_reply)
        self._in_flight.append(_InFlight(spooled, reply))
        self._in_flight_bytes += len(record.payload)
        return True

    def _on_reply(self, reply: asyncio.Future[Any]) -> None:
        error = None if reply.cancelled() else reply.exception()
        if isinstance(error, LeaderlessError):
            self._leaderless = error
        self._wake.set()

    async def _wait_for_change(self) -> None:
        """Wait for an acknowledgement or a new record; only briefly, because connections can fail silently."""
        alarm = asyncio.get_running_loop().call_later(_POLL_INTERVAL, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            alarm.cancel()

    async def _collect_replies(self) -> None:
        """Wait for the replies on what was sent behind a refused record.

        The broker may have stored it, and drops its message id after the stream's duplicate window.
        """
        if self._in_flight:
            await asyncio.wait([sent.reply for sent in self._in_flight], timeout=_REPLIES_SECONDS)

    def _cancel_in_flight(self) -> None:
        """Cancel all sends in flight. Their records will be sent again, in order."""
        for sent in self._in_flight:
            if sent.reply.cancel() or sent.reply.exception() is not None:
                continue
            self._stored_numbers.add(sent.spooled.number)
        self._to_resend.extendleft(sent.spooled for sent in reversed(self._in_flight))
        self._in_flight.clear()
        self._in_flight_bytes = 0

    async def _wait(self, error: Exception, seconds: float) -> None:
        if self._failures % failures_per_log_line(error) == 0:
            _log.warning(
                "event not acknowledged, retrying", failures=self._failures, depth=self._spool.depth, error=str(error)
            )
        self._failures += 1
        await asyncio.sleep(seconds)
