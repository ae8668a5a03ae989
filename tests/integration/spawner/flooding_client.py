"""A program that floods a subject with a client's credential: `<url> <credentials> <subject> <again> <body>`.

It publishes at full speed until its connection is closed. With `again` it connects again each time, and pauses after
every 4 MB, which leaves time on the machine for other processes. It ends after a number of messages or bytes.
"""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

import nats.errors
import uvloop
from nats.aio.client import Client

from sandherd.bus.connection import ConnectionIdentity
from sandherd.bus.identity import bearer

MOST = 500_000
MOST_BYTES = 4096 * 1024 * 1024
SMALLER = (10_000, 500, 1)
"""The sizes of the messages after each large one, in bytes: they leave no space for another project's small command."""
BODIES = {
    "one-byte": b"1",
    "json": b'{"type": "spawner.submit_task"}',
    "large": b'{"data": {"task": "task-1"}, "x": "' + b"x" * 200_000 + b'"}',
}
_AT_ONCE = 20
_PAUSE = 0.05
_STUCK = 20


async def flood(url: str, credentials: Path, subject: str, body: bytes, *, again: bool) -> None:
    """Run one flood to its end."""
    left = min(MOST, MOST_BYTES // len(body))
    while left > 0:
        client = Client()
        with suppress(nats.errors.Error, OSError, TimeoutError):
            await client.connect(
                url,
                inbox_prefix=bearer(credentials.read_text()).inbox,
                allow_reconnect=False,
                error_cb=_ignore,
                **ConnectionIdentity.file(credentials).options(),
            )
            while left > 0 and not client.is_closed:
                # nats-py waits forever to publish more where the connection is closed in that moment.
                async with asyncio.timeout(_STUCK):
                    await _publish(client, subject, body, again=again)
                left -= _AT_ONCE
                await asyncio.sleep(_PAUSE if again else 0)
        if not again:
            print("closed" if client.is_closed else "done")
            return
        await asyncio.sleep(_PAUSE)


async def _publish(client: Client, subject: str, body: bytes, *, again: bool) -> None:
    for part in [body, *(body[:size] for size in SMALLER if size < len(body))] if again else [body]:
        for _ in range(_AT_ONCE):
            await client.publish(subject, part)
    await client.flush(timeout=_STUCK)


async def _ignore(_error: Exception) -> None:
    return None


if __name__ == "__main__":
    _url, _credentials, _subject, _again, _body = sys.argv[1:]
    uvloop.run(flood(_url, Path(_credentials), _subject, BODIES[_body], again=_again == "again"))
