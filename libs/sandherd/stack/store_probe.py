"""Requests the health of nats-servers and publishes a probe, over persistent connections.

The connections stay open, because a server that is out of file descriptors accepts no new connection.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

import nats.js.errors
from nats.aio.msg import Msg

from sandherd.bus.auth.health_subjects import HEALTH, WATCHER, WATCHER_INBOX
from sandherd.bus.auth.permissions import probe_subject
from sandherd.bus.auth.setup_permissions import PROBE, PROBE_INBOX
from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus, ConnectionIdentity

_REPLY_SECONDS: Final = 2.0
_WRITE_SECONDS: Final = 3.0
"""How long the broker may take to acknowledge the probe."""
_PAYLOAD: Final = b"." * 5000
"""More than a page of memory or disk: a smaller probe could fit into a half-used page of a full file system."""


class StoreProbe:
    """Two connections: one that may request the health of servers, and one that may publish the probe."""

    def __init__(self, watcher: Bus, writer: Bus) -> None:
        self._watcher = watcher
        self._writer = writer
        self._provisioned = False

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, watcher: Path, probe: Path) -> AsyncIterator["StoreProbe"]:
        """Connect with these two credentials. Waits for the broker without limit."""
        async with (
            Bus.open(url, name=WATCHER, identity=ConnectionIdentity.file(watcher), inbox=WATCHER_INBOX) as watching,
            Bus.open(url, name=PROBE, identity=ConnectionIdentity.file(probe), inbox=PROBE_INBOX) as writing,
        ):
            yield cls(watching, writing)

    async def read_health(self, servers: AbstractSet[str]) -> dict[str, str]:
        """The health of these servers by name, and perhaps of others. Unavailable servers are omitted."""
        health_by_server: dict[str, str] = {}
        all_replied = asyncio.Event()

        async def receive(msg: Msg) -> None:
            name, health = read_health(msg.data)
            health_by_server[name] = health
            if servers <= health_by_server.keys():
                all_replied.set()

        try:
            async with asyncio.timeout(_REPLY_SECONDS):
                inbox = self._watcher.client.new_inbox()
                subscription = await self._watcher.client.subscribe(inbox, cb=receive)
                try:
                    await self._watcher.client.publish(HEALTH, b"", inbox)
                    await all_replied.wait()
                finally:
                    await subscription.unsubscribe()
        except BROKER_ERRORS:
            return health_by_server
        return health_by_server

    async def write(self) -> bool:
        """Publish the probe. Returns whether it was acknowledged; True until the stream `PROBE` first exists."""
        try:
            async with asyncio.timeout(_WRITE_SECONDS):
                await self._writer.js.publish(probe_subject(PROBE), _PAYLOAD, timeout=_WRITE_SECONDS)
        except nats.js.errors.NoStreamResponseError:
            # A deployment is provisioned after its broker is ready. If JetStream is disabled, the health reports it.
            return not self._provisioned
        except BROKER_ERRORS:
            return False
        self._provisioned = True
        return True


async def is_silent(host: str, port: int) -> bool:
    """Whether a new connection, which the kernel accepts, receives nothing from the server within 2 s."""
    try:
        async with asyncio.timeout(_REPLY_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False  # the server has ended, or is starting
    with closing(writer):
        try:
            async with asyncio.timeout(_REPLY_SECONDS):
                await reader.read(1)
        except TimeoutError:
            return True
        except OSError:
            return False
    return False


def read_health(reply: bytes) -> tuple[str, str]:
    """The server's name in its reply to a health request, and `ok` or the problem."""
    document: dict[str, Any] = json.loads(reply)
    health = document.get("data") or document.get("error") or {}
    return document["server"]["name"], str(health.get("error") or health.get("status") or "unknown")
