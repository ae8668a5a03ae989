"""A process that posts events to the baseline: `python -m tests.bench.ingest_post URL EVENTS MOMENTS RATE`.

It uses 32 connections, each as fast as its responses (a RATE of 0), or a steady rate. It writes when each event was
posted.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import Final

import aiohttp
import uvloop

from tests.bench.ingest_events import BenchEvent, read_events, write_moments

CONNECTIONS: Final = 32
_HEADERS: Final = {"Content-Type": "application/json"}


async def flood(session: aiohttp.ClientSession, url: str, events: list[BenchEvent], moments: dict[str, float]) -> None:
    """Post on each connection the next event as soon as the last one has its response."""
    waiting = iter(events)

    async def post_all() -> None:
        for event in waiting:
            await _post(session, url, event, moments)

    await asyncio.gather(*[post_all() for _ in range(CONNECTIONS)])


async def trickle(
    session: aiohttp.ClientSession, url: str, events: list[BenchEvent], moments: dict[str, float], rate: float
) -> None:
    """Post one event after the other at a fixed rate, which does not depend on responses."""
    begun = time.monotonic()
    posting = []
    for place, event in enumerate(events):
        await asyncio.sleep(max(0.0, begun + place / rate - time.monotonic()))
        posting.append(asyncio.create_task(_post(session, url, event, moments)))
    await asyncio.gather(*posting)


async def _post(session: aiohttp.ClientSession, url: str, event: BenchEvent, moments: dict[str, float]) -> None:
    moments[event.id] = time.monotonic()
    async with session.post(url, data=event.document, headers=_HEADERS) as answer:
        answer.raise_for_status()


async def main(url: str, events: Path, moments: Path, rate: float) -> None:
    """Post all events, and write when each was posted."""
    event, begun = list(read_events(events)), dict[str, float]()
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    async with aiohttp.ClientSession(connector=connector) as session:
        await (trickle(session, url, event, begun, rate) if rate else flood(session, url, event, begun))
    write_moments(moments, begun)


if __name__ == "__main__":
    where, events_path, moments_path, speed = sys.argv[1:]
    uvloop.run(main(where, Path(events_path), Path(moments_path), float(speed)))
