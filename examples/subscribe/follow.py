"""Follows one project's events: python follow.py PROJECT NAME [COUNT].

NAME is a durable subscription: events published while this program, or the broker, is not running are delivered
later. Each event is one line of JSON on standard output, and is acknowledged once it is written. With COUNT the
program ends after that number of events.

NATS_URL              the broker's address
SANDHERD_CREDENTIALS  a subscriber's credential: sandherd credentials create --role subscriber --project PROJECT
"""

import asyncio
import json
import sys

from sandherd.client import Context, Herd
from sandherd.telemetry import logs


async def follow(project: str, name: str, count: float) -> None:
    """Write the project's events, at most `count`."""
    async with Herd.connect(Context.resolve(project=project)) as herd:
        await herd.subscribe(name, start="all")  # an existing subscription keeps its position
        seen = 0
        async with herd.receive(name) as events:
            async for received in events:
                event = received.event
                line = {"id": str(event.id), "type": event.type, "subject": event.subject, "project": event.project}
                print(json.dumps(line), flush=True)
                await received.ack()
                seen += 1
                if seen >= count:
                    break


if __name__ == "__main__":
    logs.configure("follow", "warning")  # the library logs to standard error
    asyncio.run(follow(sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else float("inf")))
