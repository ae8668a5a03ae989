"""A process that sends event-ingest one request many times at once, with a project's credential, and reads no reply.

Its arguments are the broker's URL, a credentials file, the prefix of its replies, the subject, the request's JSON and
the number of requests. It prints the number of replies, and ends when all have come.
"""

import asyncio
import sys
from collections import Counter
from pathlib import Path

from sandherd.bus.connection import Bus, BusError, ConnectionIdentity

_WITHIN = 120.0


async def flood(url: str, credentials: str, inbox: str, subject: str, payload: str, count: int) -> Counter[str]:
    """Send the requests; returns the number of replies of each kind."""
    async with Bus.open(url, name="flood", identity=ConnectionIdentity.file(Path(credentials)), inbox=inbox) as bus:

        async def ask() -> str:
            try:
                reply = await bus.request(subject, payload.encode(), timeout=_WITHIN)
            except BusError:
                return "none"
            return "ok" if reply.startswith(b'{"ok"') else reply[:120].decode(errors="replace")

        return Counter(await asyncio.gather(*[ask() for _ in range(count)]))


if __name__ == "__main__":
    url, credentials, inbox, subject, payload, count = sys.argv[1:]
    print(asyncio.run(flood(url, credentials, inbox, subject, payload, int(count))))
