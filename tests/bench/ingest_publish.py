"""A process that publishes events, as fast as the broker acknowledges them or at a steady rate.

`python -m tests.bench.ingest_publish URL CREDENTIALS EVENTS MOMENTS RATE`: CREDENTIALS is a directory with a file for
each sandbox; a RATE of 0 is as fast as possible. It writes when each event was published.
"""

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import uvloop
from nats.aio.msg import Msg

from sandherd.bus.connection import Bus, ConnectionIdentity
from tests.bench.ingest_events import SANDBOXES, BenchEvent, read_events, write_moments

WINDOW: Final = 512
"""How many events of a sandbox may wait for their acknowledgement."""
_CHUNK: Final = 64


class RecordedPublisher:
    """Publishes the events of one sandbox in a window; it is done when the broker has acknowledged every event."""

    def __init__(self, bus: Bus) -> None:
        self._client = bus.client
        self._inbox = bus.client.new_inbox()
        self._sent = self._acknowledged = 0
        self._moved = asyncio.Event()

    async def publish_all(self, events: list[BenchEvent], moments: dict[str, float]) -> None:
        """Publish the events in order. Raises `RuntimeError` if the broker refuses one."""
        await self._client.subscribe(self._inbox, cb=self._on_ack)
        for start in range(0, len(events), _CHUNK):
            await self._until_waiting(WINDOW - _CHUNK)
            for event in events[start : start + _CHUNK]:
                moments[event.id] = time.monotonic()
                await self._client.publish(event.subject, event.document, self._inbox, {"Nats-Msg-Id": event.id})
                self._sent += 1
        await self._until_waiting(0)

    async def _until_waiting(self, most: int) -> None:
        while self._sent - self._acknowledged > most:
            self._moved.clear()
            await asyncio.wait_for(self._moved.wait(), 30)

    async def _on_ack(self, msg: Msg) -> None:
        if b'"error"' in msg.data or msg.headers:
            raise RuntimeError(f"not stored: {msg.data!r} {msg.headers}")
        self._acknowledged += 1
        self._moved.set()


async def flood(buses: dict[str, Bus], events: list[BenchEvent], moments: dict[str, float]) -> None:
    """Publish the events of each sandbox in its own window, as its spool does."""
    own: dict[str, list[BenchEvent]] = {sandbox: [] for sandbox in buses}
    for event in events:
        own[event.sandbox].append(event)
    await asyncio.gather(*[RecordedPublisher(bus).publish_all(own[sandbox], moments) for sandbox, bus in buses.items()])


async def trickle(buses: dict[str, Bus], events: list[BenchEvent], moments: dict[str, float], rate: float) -> None:
    """Publish one event after the other at a fixed rate, which does not depend on acknowledgements."""
    begun = time.monotonic()
    acknowledged = []
    for place, event in enumerate(events):
        await asyncio.sleep(max(0.0, begun + place / rate - time.monotonic()))
        moments[event.id] = time.monotonic()
        publishing = buses[event.sandbox].publish(event.subject, event.document, msg_id=event.id)
        acknowledged.append(asyncio.create_task(publishing))
    await asyncio.gather(*acknowledged)


async def main(url: str, credentials: Path, events: Path, moments: Path, rate: float) -> None:
    """Connect as each sandbox, publish all events, and write when each was published."""
    event, begun = list(read_events(events)), dict[str, float]()
    async with AsyncExitStack() as stack:
        buses = {}
        for sandbox in SANDBOXES:
            identity = ConnectionIdentity.file(credentials / f"{sandbox}.creds")
            opening = Bus.open(url, name=sandbox, identity=identity, inbox=f"_INBOX_{sandbox}")
            buses[sandbox] = await stack.enter_async_context(opening)
        await (trickle(buses, event, begun, rate) if rate else flood(buses, event, begun))
    write_moments(moments, begun)


if __name__ == "__main__":
    where, keys, published_file, noted_in, speed = sys.argv[1:]
    uvloop.run(main(where, Path(keys), Path(published_file), Path(noted_in), float(speed)))
