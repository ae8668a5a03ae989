"""A process that asks event-ingest the same many times at once, with a project's own credential, and reads no answer.

Arguments: the broker's URL, a credentials file, the prefix of its replies, the subject, the request's JSON, how often.
Prints how many answers came, and ends when all have.
"""

import asyncio
import sys
from collections import Counter
from pathlib import Path

from sandherd.bus.connection import Bus, BusError, ConnectionIdentity

_WITHIN = 120.0


async def flood(url: str, credentials: str, inbox: str, subject: str, payload: str, count: int) -> Counter[str]:
    """Ask; returns how many answers there were of each kind."""
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
