"""Requests the health of a herd's nats-servers. It is a separate module, so that `sandherd status` loads little."""

import asyncio
import json
from pathlib import Path
from typing import Any, Final

from nats.aio.msg import Msg

from sandherd.bus.auth.health_subjects import HEALTH, WATCHER_INBOX
from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus, BusError, ConnectionIdentity

CLUSTER: Final = "sandherd"
"""The name of the cluster, and the prefix of its servers' names."""
_REPLY_SECONDS: Final = 1.0


def is_broker(part: str) -> bool:
    """Whether a part of a stack is one of its nats-servers."""
    return part.partition("-")[0] == "nats"


def server_name(part: str) -> str:
    """The name of a server in its cluster, from the name of its part: `sandherd-1` of `nats-1`."""
    return part.replace("nats", CLUSTER, 1)


async def request_health(url: str, credentials: Path, count: int) -> dict[str, str]:
    """The health that each server reports, by its name: `ok` or the problem. Unavailable servers are omitted.

    A server of a cluster is healthy if it has caught up with the others in every stream that it stores.
    """
    health_by_server: dict[str, str] = {}
    all_replied = asyncio.Event()

    async def receive(msg: Msg) -> None:
        reply: dict[str, Any] = json.loads(msg.data)
        health = reply.get("data") or reply.get("error") or {}
        health_by_server[reply["server"]["name"]] = str(health.get("error") or health.get("status") or "unknown")
        if len(health_by_server) == count:
            all_replied.set()

    try:
        async with (
            asyncio.timeout(2 * _REPLY_SECONDS),
            Bus.open(
                url,
                name="watcher",
                identity=ConnectionIdentity.file(credentials),
                inbox=WATCHER_INBOX,
                connect_timeout=0,
            ) as bus,
        ):
            await bus.client.subscribe(inbox := bus.client.new_inbox(), cb=receive)
            await bus.client.publish(HEALTH, b"", inbox)
            async with asyncio.timeout(_REPLY_SECONDS):
                await all_replied.wait()
    except (*BROKER_ERRORS, BusError):
        return health_by_server  # servers that have not replied by now are left out
    return health_by_server
