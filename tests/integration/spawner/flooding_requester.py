"""A program that floods a service with requests: `<url> <credentials> <inbox> <subject> <document>`.

It sends 7,500 a second, or as many as the broker takes, and reads every reply, until its connection is closed or it has
sent that number. It prints `flooding` when the broker has the first of them, and at the end `closed` or `done`.
"""

import asyncio
import sys
import time
from contextlib import suppress
from pathlib import Path

import nats.errors
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg

from sandherd.bus.connection import ConnectionIdentity

MOST = 1_000_000
PER_SECOND = 7_500
_AT_ONCE = 250


async def flood(url: str, credentials: Path, inbox: str, subject: str, document: bytes) -> bool:
    """Run one flood. Returns whether the broker has closed the connection."""
    client = Client()
    await client.connect(
        url,
        inbox_prefix=inbox,
        allow_reconnect=False,
        error_cb=_ignore,
        **ConnectionIdentity.file(credentials).options(),
    )
    await client.subscribe(f"{inbox}.flood.*", cb=_drop)
    sending = asyncio.create_task(_send(client, f"{inbox}.flood", subject, document))
    while not client.is_closed and not sending.done():
        await asyncio.sleep(0.05)
    closed = client.is_closed
    sending.cancel()  # a flush without a reply waits for its whole time
    await asyncio.gather(sending, return_exceptions=True)
    if not closed:
        await client.close()
    return closed


async def _send(client: Client, inbox: str, subject: str, document: bytes) -> None:
    began = time.monotonic()
    with suppress(nats.errors.Error, OSError, TimeoutError):
        for number in range(0, MOST, _AT_ONCE):
            for place in range(_AT_ONCE):
                await client.publish(subject, document, reply=f"{inbox}.{number + place}")
            await client.flush(timeout=60)
            if not number:
                print("flooding", flush=True)
            await asyncio.sleep(max(0.0, began + number / PER_SECOND - time.monotonic()))
    while not client.is_closed:  # the broker has closed it, or will, for what it has sent
        await asyncio.sleep(0.05)


async def _drop(_reply: Msg) -> None:
    return None


async def _ignore(_error: Exception) -> None:
    return None


if __name__ == "__main__":
    _url, _credentials, _inbox, _subject, _document = sys.argv[1:]
    _closed = uvloop.run(flood(_url, Path(_credentials), _inbox, _subject, _document.encode()))
    print("closed" if _closed else "done", flush=True)
