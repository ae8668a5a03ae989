"""The name server of a sandbox: forwards queries for permitted names to the host's own resolvers."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

from sandherd_network import dns_messages
from sandherd_network.dns_messages import DnsQuestion
from sandherd_network.event_loop import READ, EventLoop
from sandherd_network.policy import Decisions, parse_address

TYPE_CHECKING = False  # `typing` is not loaded at run time, so that this program starts faster
if TYPE_CHECKING:
    from typing import Any, Final

RESOLV_CONF: Final = "/etc/resolv.conf"
PORT: Final = 53
_MAX_QUERIES: Final = 64
"""Maximum concurrent queries of one sandbox. Further queries fail."""
_QUERY_TIMEOUT_SECONDS: Final = 3.0
_MAX_ATTEMPTS: Final = 3
"""The maximum number of times that one query is sent to the host's resolvers."""
_MAX_DATAGRAM: Final = 65_535
_MIN_ALLOWED_SECONDS: Final = 3600.0
"""The minimum time for which a resolved address of an allowed name is allowed. Programs may use an address for longer
than its TTL."""

ReplySender = Callable[[bytes], None]
"""Sends a reply to the client that has sent the query."""


class _PendingQuery:
    """A query that was sent to the resolver of `upstream` with the random id `query_id`, and waits for its reply."""

    def __init__(
        self,
        message: bytes,
        question: DnsQuestion,
        send_reply: ReplySender,
        *,
        attempt: int,
        upstream: socket.socket,
        query_id: bytes,
        sent_at: float,
    ) -> None:
        self.message, self.question, self.send_reply = message, question, send_reply
        self.attempt, self.upstream, self.query_id, self.sent_at = attempt, upstream, query_id, sent_at


def name_servers() -> list[str]:
    """The host's resolvers, as currently listed in its `resolv.conf`."""
    servers = []
    with suppress(OSError), open(RESOLV_CONF, errors="replace") as file:  # noqa: PTH123  # `pathlib` is not loaded
        for line in file:
            fields = line.split()
            if len(fields) > 1 and fields[0] == "nameserver" and parse_address(fields[1].partition("%")[0]):
                servers.append(fields[1])
    return servers[:_MAX_ATTEMPTS] or ["127.0.0.1"]


class Resolver:
    """Answers DNS queries in datagrams, and remembers the addresses of the policy's names."""

    def __init__(self, loop: EventLoop, decisions: Decisions) -> None:
        self._loop, self._decisions = loop, decisions
        self._pending: dict[int, _PendingQuery] = {}
        loop.every_iteration(self._check_timeouts)

    def serve(self, server: socket.socket) -> None:
        """Answer queries on this socket from now on."""
        server.setblocking(False)
        self._loop.watch(server.fileno(), READ, lambda _: self._on_datagram(server))

    def resolve(self, message: bytes, send_reply: ReplySender) -> None:
        """Answer a query, immediately or later. An invalid query gets no reply."""
        question = dns_messages.parse_question(message)
        if question is None or not dns_messages.is_standard_query(message):
            return
        if not self._decisions.policy.may_resolve(question.name):
            send_reply(dns_messages.error_reply(message, question, dns_messages.NO_SUCH_NAME))
        elif len(self._pending) >= _MAX_QUERIES or not self._send(message, question, send_reply, 0):
            send_reply(dns_messages.error_reply(message, question, dns_messages.SERVER_FAILURE))

    def _on_datagram(self, server: socket.socket) -> None:
        for _ in range(_MAX_QUERIES):
            try:
                message, control, _, client = server.recvmsg(_MAX_DATAGRAM, 256)
            except OSError:
                return
            self.resolve(message, _reply_sender(server, control, client))

    def _send(self, message: bytes, question: DnsQuestion, send_reply: ReplySender, attempt: int) -> bool:
        """Send a query to one of the host's resolvers. Returns False if it can't be sent."""
        servers = name_servers()
        server = servers[attempt % len(servers)]
        upstream = socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM)
        upstream.setblocking(False)
        query_id = os.urandom(2)
        try:
            upstream.connect((server, PORT))
            upstream.send(query_id + message[2:])
        except OSError:
            upstream.close()
            return False
        self._pending[upstream.fileno()] = _PendingQuery(
            message,
            question,
            send_reply,
            attempt=attempt,
            upstream=upstream,
            query_id=query_id,
            sent_at=self._loop.now,
        )
        self._loop.watch(upstream.fileno(), READ, lambda _: self._on_reply(upstream))
        return True

    def _on_reply(self, upstream: socket.socket) -> None:
        query = self._pending[upstream.fileno()]
        try:
            reply = upstream.recv(_MAX_DATAGRAM)
        except OSError:
            self._retry(query)
            return
        question = dns_messages.parse_question(reply)
        if reply[:2] != query.query_id or (question and question.name != query.question.name):
            return  # not the reply to this query, which is still awaited
        self._close(query)
        for resolved in dns_messages.parse_addresses(reply) if question else []:
            expires_at = self._loop.now + max(resolved.ttl, _MIN_ALLOWED_SECONDS)
            self._decisions.remember(query.question.name, [resolved.address], expires_at)
        query.send_reply(query.message[:2] + reply[2:])

    def _retry(self, query: _PendingQuery) -> None:
        self._close(query)
        for attempt in range(query.attempt + 1, _MAX_ATTEMPTS):
            if self._send(query.message, query.question, query.send_reply, attempt):
                return
        query.send_reply(dns_messages.error_reply(query.message, query.question, dns_messages.SERVER_FAILURE))

    def _close(self, query: _PendingQuery) -> None:
        self._pending.pop(query.upstream.fileno())
        self._loop.unwatch(query.upstream.fileno())
        query.upstream.close()

    def _check_timeouts(self) -> float | None:
        for query in [
            query for query in self._pending.values() if self._loop.now - query.sent_at > _QUERY_TIMEOUT_SECONDS
        ]:
            self._retry(query)
        return 0.5 if self._pending else None


def _reply_sender(server: socket.socket, control: list[tuple[int, int, bytes]], client: tuple[Any, ...]) -> ReplySender:
    """A function that sends replies from the queried address. Clients ignore replies from other addresses."""

    def send_reply(reply: bytes) -> None:
        with suppress(OSError):
            server.sendmsg([reply], [_as_source(level, kind, data) for level, kind, data in control], 0, client)

    return send_reply


def _as_source(level: int, kind: int, data: bytes) -> tuple[int, int, bytes]:
    """Control data of a reply: the query's destination address (`in_pktinfo`, `in6_pktinfo`) as the source."""
    if level == socket.IPPROTO_IPV6:
        return level, kind, data[:16] + struct.pack("=I", 0)
    return level, kind, struct.pack("=I4s4s", 0, data[8:12], b"")
