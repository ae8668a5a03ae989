"""nats-py's client with three corrections.

It never sends plain text if TLS is required. It continues to read where nats-py would stop: after a late PONG of a
flush, and after messages whose subject or headers are invalid, which a sandbox may publish. And it disconnects from a
server that does not read any more.
"""

import asyncio
import re
import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.protocol import parser
from nats.protocol.command import hpub_cmd, pub_cmd

from sandherd.bus.shutdown import abort
from sandherd.contracts.headers import MESSAGE_ID

_TLS_SCHEMES: Final = frozenset({"tls", "wss"})

# A publisher may use any bytes except these four in the last token of a subject. nats-py also takes a vertical tab and
# a form feed as separators, and would close the connection at each delivery of such a message.
_ARGUMENTS: Final = rb"[ \t]+([^ \t\r\n]+)[ \t]+(\d+)[ \t]+(([^ \t\r\n]+)[ \t]+)?"
parser.MSG_RE = re.compile(rb"\AMSG" + _ARGUMENTS + rb"(\d+)\r\n")
_SEPARATORS: Final = re.compile(r"[ \t\r\n]")
"""Characters that may not be in a subject or an id, because the server would read another command after them."""
parser.HMSG_RE = re.compile(rb"\AHMSG" + _ARGUMENTS + rb"(\d+)[ \t]+(\d+)\r\n")


class PlainTextError(nats.errors.Error):
    """The server offers no TLS, but a URL or a certificate file requires it. Nothing was sent to the server."""

    def __init__(self) -> None:
        super().__init__("the server offers no TLS, which a tls:// URL, NATS_CA or NATS_CERT requires")


class TlsClient(Client):
    """With `tls_required`, a client that refuses a server without TLS.

    nats-py lets the server decide by its first message, which is plain text: a man in the middle may change it.
    """

    def __init__(self, *, tls_required: bool) -> None:
        super().__init__()
        self._tls_required = tls_required
        self.admits: Callable[[bytes, bytes, int], bool] | None = None
        """Decides whether a received message is queued, by its subject, its reply subject, and the number of messages
        that wait in the queue of its subscription. Set it before subscribing."""
        self._takers: dict[int, Callable[[Msg], None]] = {}
        """The functions given to `take_messages`, by the id of the subscription."""
        self._reply_takers: dict[int, Callable[[bytes, bytes, bytes], None]] = {}
        """The functions given to `take_replies`, by the id of the subscription."""

    def take_messages(self, subscription: Subscription, take: Callable[[Msg], None]) -> None:
        """Pass messages of a subscription that have a reply subject directly to `take`, without a queue.

        Their headers are not read. Headers and queue together take as much CPU time as the rest of receiving a message.
        The queue's limits don't apply, so the subscription may only be one that receives no more than it requests.
        """
        self._takers[subscription._id] = take  # noqa: SLF001  # nats-py has no public name for it

    def take_replies(self, subscription: Subscription, take: Callable[[bytes, bytes, bytes], None]) -> None:
        """Pass subject, data and headers of a subscription's messages to `take`, as they are read from the connection.

        `take` must not raise, because nothing more would be read.
        """
        self._reply_takers[subscription._id] = take  # noqa: SLF001  # as above

    @property
    def is_tls(self) -> bool:
        """Whether the last server that responded has TLS."""
        return bool(self._server_info.get("tls_required"))

    @property
    def is_clustered(self) -> bool:
        """Whether the last server that responded belongs to a cluster."""
        return "cluster" in self._server_info

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes of published messages that the kernel has not taken yet, because the server reads slowly."""
        writer = getattr(self._transport, "_io_writer", None)  # not over a WebSocket
        return self._pending_data_size + (0 if writer is None else int(writer.transport.get_write_buffer_size()))

    async def publish_each(self, subjects: Iterable[str], payload: bytes) -> None:
        """Publish one payload on each of these subjects in one write, with a quarter of the CPU time of single writes.

        The subjects are not validated, so they must come from the broker. Raises what `publish` raises; then nothing is
        published.
        """
        first, *others = subjects
        await self.publish(first, payload)  # it also checks the connection, and schedules the write
        if others:
            self.stats["out_msgs"] += len(others)
            self.stats["out_bytes"] += len(others) * len(payload)
            await self._send_command(b"".join([pub_cmd(subject, "", payload) for subject in others]))

    def publish_at_once(self, subject: str, reply: str, payload: bytes, *, msg_id: str) -> int:
        """Publish a message with this id. It is written at the end of this iteration of the event loop, with others.

        Returns its size in bytes with all headers. It never waits until earlier data is written, so the publisher has
        to limit what is not acknowledged yet. Raises what `publish` raises, and `ConnectionClosedError` also while the
        connection is lost.
        """
        if not self.is_connected:
            raise nats.errors.ConnectionClosedError
        if self.is_draining_pubs:
            raise nats.errors.ConnectionDrainingError
        if not subject or _SEPARATORS.search(subject) or _SEPARATORS.search(msg_id):
            raise nats.errors.BadSubjectError
        headers = f"NATS/1.0\r\n{MESSAGE_ID}: {msg_id}\r\n\r\n".encode()
        if len(headers) + len(payload) > self._max_payload:  # nats-py would not count the headers, and the server close
            raise nats.errors.MaxPayloadError
        command = hpub_cmd(subject, reply, headers, payload)
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += len(payload)
        self._pending.append(command)
        self._pending_data_size += len(command)
        if self._flush_queue is not None and self._flush_queue.empty():
            self._flush_queue.put_nowait(asyncio.get_running_loop().create_future())
        return len(command)

    async def _process_info(
        self,
        info: dict[str, Any],
        initial_connection: bool = False,  # noqa: FBT001, FBT002  # the base class's signature
    ) -> None:
        """Called for each INFO of the server. The first one of a connection is received before anything is sent."""
        if initial_connection and self._tls_required and not self._is_websocket_tls():
            if not (info.get("tls_required") or info.get("tls_available")):
                if self._transport is not None:
                    self._transport.close()  # type: ignore[no-untyped-call]  # nats-py carries no types there
                raise PlainTextError
            info["tls_required"] = True  # a server that also accepts plain text only reports that TLS is available
        await super()._process_info(info, initial_connection)

    async def _process_op_err(self, e: Exception) -> None:
        """Called when the connection has failed. nats-py would wait without limit for a server that does not read.

        It reconnects only after what was written to the old connection has been sent.
        """
        if self.is_connected:
            abort(self)
        await super()._process_op_err(e)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        """Called for each message, before its headers are read and before it is queued."""
        if self.admits is not None:
            subscription = self._subs.get(sid)
            if subscription is not None and not self.admits(subject, reply, subscription.pending_msgs):
                return
        if (take_reply := self._reply_takers.get(sid)) is not None:
            self.stats["in_msgs"] += 1
            self.stats["in_bytes"] += len(data)
            take_reply(subject, data, headers or b"")  # nats-py has None if there are none
            return
        take = self._takers.get(sid) if reply else None
        if take is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        take(self._build_message(sid, subject, reply, data, None))

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
        """Called for each message. nats-py would stop reading at a subject that is not UTF-8."""
        try:
            message: Msg = super()._build_message(sid, subject, reply, data, headers)
        except UnicodeDecodeError:
            message = super()._build_message(sid, _readable(subject), _readable(reply), data, headers)
        return message

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        """Called for each message. nats-py would stop reading at headers that are malformed."""
        try:
            return await super()._process_headers(headers)
        except (ValueError, LookupError):
            return self._parse_header_lines(headers) or None  # headers of the broker may follow a malformed one

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        """Called at the end of each subscription."""
        self._takers.pop(sid, None)
        self._reply_takers.pop(sid, None)
        super()._remove_sub(sid, max_msgs)

    async def _process_pong(self) -> None:
        """Called for each PONG. nats-py would stop reading if the flush that sent the PING has timed out meanwhile.

        The connection would look established but receive nothing, until it is closed because of missing PONGs.
        """
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    def _is_websocket_tls(self) -> bool:
        return self._current_server is not None and self._current_server.uri.scheme == "wss"

    def is_tls_failure(self, error: Exception) -> bool:
        """Whether a connect failed because of TLS. The server may also close the connection, or not respond."""
        if isinstance(error, ssl.SSLError | PlainTextError):
            return True
        return self.is_tls and isinstance(error, OSError)  # includes `TimeoutError`


def _readable(subject: bytes) -> bytes:
    """The subject with its invalid bytes replaced, so that it is UTF-8."""
    return subject.decode(errors="replace").encode()


def requires_tls(url: str) -> bool:
    """Whether one of these URLs, separated by commas, has a TLS scheme; TLS is then required for all of them."""
    return any(urlsplit(server.strip()).scheme in _TLS_SCHEMES for server in url.split(","))
