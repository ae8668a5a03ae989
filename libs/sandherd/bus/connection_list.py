"""Lists the connections of the broker's servers (CONNZ), each with its user and the messages and bytes it has sent.

The requests are sent by a user of the system account (`identity/spawner/connections.creds`) that may only list and
close connections. The list does not pass through any stream, so a consumer lag does not delay it.
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
from sandherd.bus.identity.server_config import MAX_CLOSED_CONNECTIONS

_MAX_OPEN_CONNECTIONS: Final = 20_000
_FIRST_PAGE_OF_CLOSED: Final = 16
"""The number of closed connections in the first page. If all of them are new, further pages are read."""
_PAGE_SIZE: Final = 256
_CLUSTER_PAGE_SIZE: Final = 80
"""Maximum number of connections of each server in one page. A connection may send 32 KB of names (`max_control_line`),
which may need six times as much in JSON, and nats-server closes a requester for which it holds 64 MiB. A page of all
servers (up to three) is smaller than 64 MiB."""
_SMALL_PAGE_SIZE: Final = 32
"""Page size after a failure, because a busy broker or spawner may need seconds for a large page."""
_LARGE_LIST_BYTES: Final = 24 * 1024 * 1024
"""If a list of open connections is larger, the next lists are read in pages. A list of closed ones ends there."""
_MAX_CONNECTIONS_IN_PAGES: Final = 1024
"""Up to this number of open connections, they are always listed in pages, so that each page arrives in time."""
_PAGES_AFTER_FAILURE: Final = 60
"""After a list that was too large or timed out, this number of lists is read in pages."""
_MAX_REMEMBERED: Final = 10_000
"""Maximum number of closed connections that are remembered, so that none is returned twice. A cluster lists fewer."""
_OPEN, _CLOSED = 0, 1
"""The values of the field `state` in a CONNZ request."""
_REPLY_TIMEOUT_SECONDS: Final = 5.0
_OTHER_SERVERS_SECONDS: Final = 0.3
"""How long to wait for the other servers of a cluster after the first reply, in seconds."""


Id = tuple[str, int]
"""The id of a server, and the number of one of its connections."""


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
    """The Unix second at which the connection was opened, by the clock of its server. It was closed at `stopped`."""
    stopped: float = math.inf

    @property
    def id(self) -> Id:
        """Identifies the connection among those of all servers."""
        return self.server, self.number


@dataclass(frozen=True, slots=True)
class _Page:
    """A page of the list: the ids of all of its connections, and the connections whose user is known."""

    ids: tuple[Id, ...]
    connections: tuple[BrokerConnection, ...]
    bytes: int

    def is_full(self, size: int, new: Collection[Id]) -> bool:
        """Whether a server may have further new connections, because it listed `size` connections, all of them new."""
        of_server = Counter(server for server, _ in self.ids)
        new_of_server = Counter(server for server, _ in new)
        return any(count >= size and new_of_server[server] == count for server, count in of_server.items())


class BrokerConnections:
    """Lists and closes connections. Use `BrokerConnections.open`."""

    def __init__(self, system: Bus) -> None:
        self._system = system
        self._pages = 1
        """The number of next lists of open connections that are read in pages."""
        self._listed: dict[Id, None] = {}
        """Closed connections that were listed before, the oldest first."""

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, credentials: Path) -> AsyncIterator["BrokerConnections"]:
        """Connect to the system account."""
        identity = ConnectionIdentity.file(credentials)
        async with Bus.open(url, name="spawner-connections", identity=identity, inbox=CONNECTIONS_INBOX) as system:
            yield cls(system)

    async def read(self) -> list[BrokerConnection]:
        """All open connections of users, and the connections that were closed since the previous call.

        Raises `BusError` if a server does not list them, `TimeoutError`, and nats-py's errors.
        """
        try:
            return [*await self._read_open(), *await self._read_closed()]
        except TimeoutError:
            self._pages = _PAGES_AFTER_FAILURE
            raise

    async def close(self, connection: BrokerConnection) -> None:
        """Close a connection. Its user may open another one, unless its credential was revoked."""
        body = json.dumps({"cid": connection.number}).encode()
        # This is a request, because the server ignores a message without a reply subject.
        await self._system.client.request(KICK.format(server=connection.server), body, timeout=_REPLY_TIMEOUT_SECONDS)

    async def _read_open(self) -> list[BrokerConnection]:
        """Read the open connections, either all in one reply of each server, or in pages.

        Pages cost the server more CPU time. They are used for few connections, and after a list that was too large.
        """
        size = self._page_size if self._pages else _MAX_OPEN_CONNECTIONS
        connections: dict[Id, BrokerConnection] = {}
        read = offset = 0
        while offset < _MAX_OPEN_CONNECTIONS:
            page = await self._read_page(_OPEN, "cid", offset, size)
            connections |= {row.id: row for row in page.connections}
            read += page.bytes
            offset += size
            if not page.is_full(size, page.ids):
                break
        self._pages = (
            _PAGES_AFTER_FAILURE
            if read > _LARGE_LIST_BYTES
            else max(self._pages - 1, int(len(connections) < _MAX_CONNECTIONS_IN_PAGES))
        )
        return list(connections.values())

    async def _read_closed(self) -> list[BrokerConnection]:
        """Read the closed connections in pages, the latest first, until a page has one that was listed before."""
        connections: dict[Id, BrokerConnection] = {}
        listed: dict[Id, None] = {}
        read, offset, size = 0, 0, _FIRST_PAGE_OF_CLOSED
        while offset < MAX_CLOSED_CONNECTIONS and read < _LARGE_LIST_BYTES:
            page = await self._read_page(_CLOSED, "stop", offset, size)
            new = [number for number in page.ids if number not in self._listed]
            listed.update(dict.fromkeys(new))
            connections |= {row.id: row for row in page.connections if row.id in listed}
            if not page.is_full(size, new):
                break
            read += page.bytes
            offset += size
            size = self._page_size
        self._listed = dict(islice((self._listed | listed).items(), max(0, self._excess(len(listed))), None))
        return list(connections.values())

    def _excess(self, added: int) -> int:
        return len(self._listed) + added - _MAX_REMEMBERED

    async def _read_page(self, state: int, sort: str, offset: int, limit: int) -> _Page:
        options = {"auth": True, "state": state, "sort": sort, "offset": offset, "limit": limit}
        replies = await self._request_all(json.dumps(options).encode())
        listed = [_listing(reply) for reply in replies]
        rows = [(server, row) for server, of_server in listed for row in of_server]
        connections = (_connection(server, row, is_open=state == _OPEN) for server, row in rows)
        return _Page(
            ids=tuple((server, row["cid"]) for server, row in rows),
            connections=tuple(connection for connection in connections if connection is not None),
            bytes=sum(map(len, replies)),
        )

    @property
    def _page_size(self) -> int:
        if self._pages > 1:
            return _SMALL_PAGE_SIZE
        return _CLUSTER_PAGE_SIZE if self._system.clustered else _PAGE_SIZE

    async def _request_all(self, request: bytes) -> list[bytes]:
        """The replies of all servers, without that of a slow server, which the next call requests again."""
        replies: asyncio.Queue[bytes] = asyncio.Queue()

        async def receive(msg: Msg) -> None:
            replies.put_nowait(msg.data)

        inbox = self._system.client.new_inbox()
        subscription = await self._system.client.subscribe(inbox, cb=receive)
        try:
            await self._system.client.publish(CONNECTIONS, request, reply=inbox)
            async with asyncio.timeout(_REPLY_TIMEOUT_SECONDS):
                documents = [await replies.get()]
            if self._system.clustered:
                await asyncio.sleep(_OTHER_SERVERS_SECONDS)
            while not replies.empty():
                documents.append(replies.get_nowait())
        finally:
            await subscription.unsubscribe()
        return documents


def _listing(reply: bytes) -> tuple[str, list[dict[str, Any]]]:
    """The id of a server and its connections, from its reply.

    Raises `BusError` for any other reply, such as the empty one of a server that is about to stop.
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
