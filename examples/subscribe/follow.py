"""Follows one project's events: python follow.py PROJECT NAME [COUNT].

NAME is a durable subscription: what is said while this program, or the broker, is away comes later. Each event is one
line of JSON on standard output, and is acknowledged when that is written; with COUNT it ends after so many.

NATS_URL              where the broker is
SANDHERD_CREDENTIALS  a subscriber's credential: sandherd credentials create --role subscriber --project PROJECT
"""

import asyncio
import json
import sys

from sandherd.client import Context, Herd
from sandherd.telemetry import logs


async def follow(project: str, name: str, count: float) -> None:
    """Write the project's events, until there were so many."""
    async with Herd.connect(Context.resolve(project=project)) as herd:
        await herd.subscribe(name, start="all")  # made if there is none; if there is, it keeps its place
        seen = 0
        async with herd.receive(name) as events:
            async for received in events:
                event = received.event
                said = {"id": str(event.id), "type": event.type, "subject": event.subject, "project": event.project}
                print(json.dumps(said), flush=True)
                await received.ack()
                seen += 1
                if seen >= count:
                    break


if __name__ == "__main__":
    logs.configure("follow", "warning")  # what the library says of its connection goes to standard error
    asyncio.run(follow(sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else float("inf")))
