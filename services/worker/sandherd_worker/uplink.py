"""The uplink: from the spool to the broker, in order, in a window, until each message is acknowledged.

What was not acknowledged is sent again under the same message id, so that the broker stores it once. After a failure
everything in flight is called back, and the first message goes alone before the window opens again: a broker that
has just come back must not take a later message while it still refuses an earlier one. What it took behind one that
it refused, as a nearly full stream takes a small message and not a large one, is not sent a second time.
"""

import asyncio
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sandherd.bus.connection import (
    Bus,
    LeaderlessError,
    PublishFailedError,
    PublishRefusedError,
    full_jitter,
    said_every,
    wait_after,
)
from sandherd.bus.rate_limit import Rate, RateLimiter
from sandherd.telemetry import logs
from sandherd_worker.spool import Spool
from sandherd_worker.spool_reader import Spooled, SpoolReader
from sandherd_worker.tasks import end_tasks

WINDOW_MESSAGES: Final = 256
WINDOW_BYTES: Final = 2 * 1024 * 1024
_REFUSED_WAIT: Final = 30.0
"""What is refused as it is would block all behind it; it is tried again slowly, because rights can be mended."""
_LOOK_AT_CONNECTION: Final = 0.1
PACE: Final = Rate(per_second=800, burst=8000)
"""Below what a sandbox may publish (`SANDHERD_FLOOD_MESSAGES` is at least 1,000 per second, with 10 seconds' worth at
once), so that a full spool after an outage is not taken for a flood."""
_log: Final = logs.get("uplink")


@dataclass(frozen=True)
class _Flight:
    spooled: Spooled
    sending: asyncio.Task[None]


class Uplink:
    """Sends one spool. It outlives the connections that it sends over."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._reader = SpoolReader(spool)
        self._again: deque[Spooled] = deque()
        """Taken from the spool and not acknowledged: sent before anything else."""
        self._flying: deque[_Flight] = deque()
        self._flying_bytes = 0
        self._taken: set[int] = set()
        """Numbers of messages that the broker has taken, behind one that it has not."""
        self._failures = 0
        self._leaderless: LeaderlessError | None = None
        self._pace = RateLimiter(PACE)
        self._paced_until = 0.0
        self._wake = asyncio.Event()
        spool.listen(self._wake.set)

    @property
    def in_flight(self) -> int:
        """How many messages wait for their acknowledgement."""
        return len(self._flying)

    async def run(self, bus: Bus) -> None:
        """Send over this connection until cancelled."""
        while True:
            try:
                await self._send_all(bus)
            except PublishFailedError as error:
                await self._wait(error, wait_after(error, self._failures))
            except PublishRefusedError as error:
                _log.error("the broker will not take this message; all behind it waits", error=str(error))
                await self._wait(error, full_jitter(self._failures, first=1.0, longest=_REFUSED_WAIT))

    def close(self) -> None:
        """Let go of the spool."""
        self._reader.close()

    async def _send_all(self, bus: Bus) -> None:
        """Send until something fails; then nothing is in flight any more."""
        while not bus.connected:  # noqa: ASYNC110  # the client wakes nobody
            await asyncio.sleep(_LOOK_AT_CONNECTION)
        connection = bus.reconnects
        alone, self._leaderless = True, None
        try:
            while True:
                self._wake.clear()
                alone = not self._land() and alone
                if not bus.connected or bus.reconnects != connection:
                    raise PublishFailedError("the connection was lost")
                if self._leaderless is not None:
                    # What was on its way to the lost leader is not waited for: nothing behind it may be taken first.
                    raise self._leaderless
                if not self._launch(bus, 1 if alone else WINDOW_MESSAGES):
                    await self._something()
        finally:
            await self._call_back()

    def _land(self) -> bool:
        """Tell the spool what was acknowledged, in order; whether there was any. Raises the first failure."""
        landed = None
        try:
            while self._flying and self._flying[0].sending.done():
                self._flying[0].sending.result()
                landed = self._flying.popleft().spooled
                self._taken.discard(landed.number)
                self._flying_bytes -= len(landed.record.payload)
        finally:
            if landed is not None:
                self._failures = 0
                self._spool.acknowledge(landed.number)
        return landed is not None

    def _launch(self, bus: Bus, window: int) -> bool:
        """Send the next message, if there is one and room for it."""
        now = time.monotonic()
        if len(self._flying) >= window or self._flying_bytes >= WINDOW_BYTES or now < self._paced_until:
            return False
        spooled = self._again.popleft() if self._again else self._reader.take()
        if spooled is None:
            return False
        self._paced_until = now + self._pace.excess(None, now)
        sending = asyncio.create_task(self._send(bus, spooled))
        sending.add_done_callback(self._on_answer)
        self._flying.append(_Flight(spooled, sending))
        self._flying_bytes += len(spooled.record.payload)
        return True

    def _on_answer(self, sending: asyncio.Task[None]) -> None:
        error = None if sending.cancelled() else sending.exception()
        if isinstance(error, LeaderlessError):
            self._leaderless = error
        self._wake.set()

    async def _something(self) -> None:
        """Wait until a message was acknowledged or a new one came; not long, because connections break silently."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_AT_CONNECTION):
                await self._wake.wait()

    async def _call_back(self) -> None:
        """Give up what is in flight: from the first that was not acknowledged, all are to be sent again, in order."""
        flights = list(self._flying)
        self._again.extendleft(flight.spooled for flight in reversed(flights))
        self._flying.clear()
        self._flying_bytes = 0
        await end_tasks([flight.sending for flight in flights])

    async def _send(self, bus: Bus, spooled: Spooled) -> None:
        if spooled.number not in self._taken:
            await _publish(bus, spooled)
            self._taken.add(spooled.number)

    async def _wait(self, error: Exception, seconds: float) -> None:
        if self._failures % said_every(error) == 0:
            _log.warning("not acknowledged", failures=self._failures, depth=self._spool.depth, error=str(error))
        self._failures += 1
        await asyncio.sleep(seconds)


async def _publish(bus: Bus, spooled: Spooled) -> None:
    record = spooled.record
    if not bus.connected:
        raise PublishFailedError("the connection was lost")
    await bus.publish(record.subject, record.payload, msg_id=record.msg_id)
