"""The broker's connections, as its servers list them (CONNZ), each with its user and what it has sent so far.

It needs a user of the system account (`identity/spawner/connections.creds`) that may only list and close connections.
The list does not pass through any stream, so it is current however large the consumer lag is.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from nats.aio.msg import Msg

from sandherd.bus.connection import Bus, Identity
from sandherd.bus.errors import BusError
from sandherd.bus.identity.claims import CONNECTIONS, CONNECTIONS_INBOX, KICK
from sandherd.bus.identity.keys import read_claims
from sandherd.contracts.principals import Principal

_MAX_OPEN: Final = 20_000
_MAX_CLOSED: Final = 1024
"""Maximum number of closed connections listed, latest first: a flood may consist of many short connections."""
_OPEN, _CLOSED = 0, 1
_WITHIN: Final = 5.0
_OTHERS_WITHIN: Final = 0.3
"""Seconds to wait for the other servers of a cluster after the first reply."""


@dataclass(frozen=True, slots=True)
class User:
    """The user of a connection, from the token that the broker has verified. `expires` is a Unix second."""

    public_key: str
    principal: Principal
    project: str
    name: str
    expires: int | None


@dataclass(frozen=True, slots=True)
class BrokerConnection:
    """One connection. `messages` and `bytes` count what it has sent since it was opened."""

    server: str
    number: int
    user: User
    messages: int
    bytes: int
    subscriptions: int
    open: bool


class BrokerConnections:
    """Lists and closes connections. Use `BrokerConnections.open`."""

    def __init__(self, system: Bus) -> None:
        self._system = system

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, credentials: Path) -> AsyncIterator["BrokerConnections"]:
        """Connect to the system account."""
        identity = Identity.file(credentials)
        async with Bus.open(url, name="spawner-connections", identity=identity, inbox=CONNECTIONS_INBOX) as system:
            yield cls(system)

    async def read(self) -> list[BrokerConnection]:
        """All open connections of users, and those closed last.

        Raises `BusError` if a server does not list them, `TimeoutError` and nats-py's errors.
        """
        return [*await self._read(_OPEN, _MAX_OPEN, "cid"), *await self._read(_CLOSED, _MAX_CLOSED, "stop")]

    async def close(self, connection: BrokerConnection) -> None:
        """Close a connection; its user may open another unless its credential was revoked."""
        body = json.dumps({"cid": connection.number}).encode()
        # A request and no publish: the server ignores a message without a reply subject.
        await self._system.client.request(KICK.format(server=connection.server), body, timeout=_WITHIN)

    async def _read(self, state: int, limit: int, sort: str) -> list[BrokerConnection]:
        question = json.dumps({"auth": True, "state": state, "limit": limit, "sort": sort}).encode()
        replies = [_listing(reply) for reply in await self._request_all(question)]
        rows = ((server, row) for server, listed in replies for row in listed)
        found = (_connection(server, row, is_open=state == _OPEN) for server, row in rows)
        return [connection for connection in found if connection is not None]

    async def _request_all(self, question: bytes) -> list[bytes]:
        """The replies of all servers; that of a slow server is missing until the next call."""
        answers: asyncio.Queue[bytes] = asyncio.Queue()

        async def answered(msg: Msg) -> None:
            answers.put_nowait(msg.data)

        inbox = self._system.client.new_inbox()
        subscription = await self._system.client.subscribe(inbox, cb=answered)
        try:
            await self._system.client.publish(CONNECTIONS, question, reply=inbox)
            async with asyncio.timeout(_WITHIN):
                found = [await answers.get()]
            if self._system.clustered:
                await asyncio.sleep(_OTHERS_WITHIN)
            while not answers.empty():
                found.append(answers.get_nowait())
        finally:
            await subscription.unsubscribe()
        return found


def _listing(reply: bytes) -> tuple[str, list[dict[str, Any]]]:
    """The id of a server, and its connections.

    Raises `BusError`: a server that is about to stop may send an empty reply.
    """
    try:
        match json.loads(reply):
            case {"server": {"id": str(server)}, "data": {"connections": listed}}:
                return server, listed or []
    except ValueError:
        pass
    raise BusError(f"the broker does not list its connections: {reply[:200].decode(errors='replace')!r}")


def _connection(server: str, row: dict[str, Any], *, is_open: bool) -> BrokerConnection | None:
    user = user_of(row.get("authorized_user", ""), row.get("jwt", ""))
    if user is None:
        return None
    counted = row.get("in_msgs", 0), row.get("in_bytes", 0), row.get("subscriptions", 0)
    return BrokerConnection(server, row["cid"], user, *counted, open=is_open)


@lru_cache(maxsize=8192)
def user_of(public_key: str, token: str) -> User | None:
    """The user of a token, or None if it is not a token of this herd."""
    try:
        claims = read_claims(token)
        tags = dict(tag.split(":", 1) for tag in claims["nats"].get("tags") or ())
        principal = Principal(tags["principal"])
    except (ValueError, KeyError):
        return None
    return User(public_key, principal, tags.get("project", ""), str(claims.get("name", "")), claims.get("exp"))
