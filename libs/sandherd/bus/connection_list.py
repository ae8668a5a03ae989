"""The broker's connections, as its servers list them (CONNZ), each with its user and what it has sent so far.

It needs a user of the system account (`identity/spawner/connections.creds`) that may only list and close connections.
The list does not pass through any stream, so it is current however large the consumer lag is.
"""

import asyncio
import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

from nats.aio.msg import Msg

from sandherd.bus.connection import Bus, ConnectionIdentity
from sandherd.bus.connection_users import ConnectionUser, user_of
from sandherd.bus.errors import BusError
from sandherd.bus.identity.claims import CONNECTIONS, CONNECTIONS_INBOX, KICK
from sandherd.bus.identity.server_config import MAX_CLOSED

_MAX_OPEN: Final = 20_000
_FIRST_CLOSED: Final = 16
"""The number of closed connections that are listed first; more are, if none of these was listed before."""
_PAGE: Final = 256
_PAGE_IN_A_CLUSTER: Final = 80
"""Connections of each server in one list. A connection may have 32 KB of names (`max_control_line`), six times that in
JSON, and nats-server closes a connection for which it holds 64 MiB: these numbers, of three servers, are less."""
_SMALL_PAGE: Final = 32
"""After a failure, as a busy broker or spawner may need seconds for a large page."""
_MANY_BYTES: Final = 24 * 1024 * 1024
"""Above this the open connections are listed in pages, and no further pages of closed ones are read."""
_MAX_PAGED: Final = 1024
"""Up to this number open connections are listed in pages: none of them delays a check by being too large."""
_PAGES_AFTER_FAILURE: Final = 60
"""How many lists are read in pages after one that was too large."""
_MAX_REMEMBERED: Final = 10_000
"""Closed connections that are not listed again: more than the servers of a cluster remember."""
_OPEN, _CLOSED = 0, 1
_WITHIN: Final = 5.0
_OTHERS_WITHIN: Final = 0.3
"""Seconds to wait for the other servers of a cluster after the first reply."""


Id = tuple[str, int]
"""The id of a server, and the number of its connection."""


@dataclass(frozen=True, slots=True)
class BrokerConnection:
    """One connection. `messages` and `bytes` count what it has sent since it was opened."""

    server: str
    number: int
    user: ConnectionUser
    messages: int
    bytes: int
    subscriptions: int
    open: bool
    started: float = 0.0
    """Unix second, by the clock of its server, as is `stopped`."""
    stopped: float = math.inf

    @property
    def id(self) -> Id:
        """What no other connection has."""
        return self.server, self.number


@dataclass(frozen=True, slots=True)
class _Page:
    """A part of the list: the ids of all of its connections, and those that are of users."""

    ids: tuple[Id, ...]
    connections: tuple[BrokerConnection, ...]
    bytes: int

    def is_full(self, size: int, new: Collection[Id]) -> bool:
        """Whether a server may have more that are new: it listed as many as were requested, and all of them are."""
        of_server = Counter(server for server, _ in self.ids)
        new_of_server = Counter(server for server, _ in new)
        return any(count >= size and new_of_server[server] == count for server, count in of_server.items())


class BrokerConnections:
    """Lists and closes connections. Use `BrokerConnections.open`."""

    def __init__(self, system: Bus) -> None:
        self._system = system
        self._pages = 1
        """How many of the next lists of open connections are read in pages."""
        self._listed: dict[Id, None] = {}
        """Closed connections that were listed, in this order."""

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, credentials: Path) -> AsyncIterator["BrokerConnections"]:
        """Connect to the system account."""
        identity = ConnectionIdentity.file(credentials)
        async with Bus.open(url, name="spawner-connections", identity=identity, inbox=CONNECTIONS_INBOX) as system:
            yield cls(system)

    async def read(self) -> list[BrokerConnection]:
        """All open connections of users, and those that were closed since the call before.

        Raises `BusError` if a server does not list them, `TimeoutError` and nats-py's errors.
        """
        try:
            return [*await self._read_open(), *await self._read_closed()]
        except TimeoutError:
            self._pages = _PAGES_AFTER_FAILURE
            raise

    async def close(self, connection: BrokerConnection) -> None:
        """Close a connection; its user may open another unless its credential was revoked."""
        body = json.dumps({"cid": connection.number}).encode()
        # A request and no publish: the server ignores a message without a reply subject.
        await self._system.client.request(KICK.format(server=connection.server), body, timeout=_WITHIN)

    async def _read_open(self) -> list[BrokerConnection]:
        """In pages, which cost the server more. Many are listed all at once, unless they were too large for that."""
        size = self._page_size if self._pages else _MAX_OPEN
        found: dict[Id, BrokerConnection] = {}
        read = offset = 0
        while offset < _MAX_OPEN:
            page = await self._read_page(_OPEN, "cid", offset, size)
            found |= {row.id: row for row in page.connections}
            read += page.bytes
            offset += size
            if not page.is_full(size, page.ids):
                break
        self._pages = _PAGES_AFTER_FAILURE if read > _MANY_BYTES else max(self._pages - 1, int(len(found) < _MAX_PAGED))
        return list(found.values())

    async def _read_closed(self) -> list[BrokerConnection]:
        """Pages, latest first, up to one that was listed before."""
        found: dict[Id, BrokerConnection] = {}
        listed: dict[Id, None] = {}
        read, offset, size = 0, 0, _FIRST_CLOSED
        while offset < MAX_CLOSED and read < _MANY_BYTES:
            page = await self._read_page(_CLOSED, "stop", offset, size)
            new = [number for number in page.ids if number not in self._listed]
            listed.update(dict.fromkeys(new))
            found |= {row.id: row for row in page.connections if row.id in listed}
            if not page.is_full(size, new):
                break
            read += page.bytes
            offset += size
            size = self._page_size
        self._listed = dict(islice((self._listed | listed).items(), max(0, self._excess(len(listed))), None))
        return list(found.values())

    def _excess(self, added: int) -> int:
        return len(self._listed) + added - _MAX_REMEMBERED

    async def _read_page(self, state: int, sort: str, offset: int, limit: int) -> _Page:
        options = {"auth": True, "state": state, "sort": sort, "offset": offset, "limit": limit}
        replies = await self._request_all(json.dumps(options).encode())
        listed = [_listing(reply) for reply in replies]
        rows = [(server, row) for server, of_server in listed for row in of_server]
        found = (_connection(server, row, is_open=state == _OPEN) for server, row in rows)
        return _Page(
            ids=tuple((server, row["cid"]) for server, row in rows),
            connections=tuple(connection for connection in found if connection is not None),
            bytes=sum(map(len, replies)),
        )

    @property
    def _page_size(self) -> int:
        if self._pages > 1:
            return _SMALL_PAGE
        return _PAGE_IN_A_CLUSTER if self._system.clustered else _PAGE

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
    user = user_of(row, is_open=is_open)
    if user is None:
        return None
    counted = row.get("in_msgs", 0), row.get("in_bytes", 0), row.get("subscriptions", 0)
    started, stopped = _seconds(row.get("start"), 0.0), _seconds(row.get("stop"), math.inf)
    return BrokerConnection(server, row["cid"], user, *counted, open=is_open, started=started, stopped=stopped)


def _seconds(time: str | None, missing: float) -> float:
    return missing if time is None else datetime.fromisoformat(time).timestamp()
