"""Publishes many messages at a time over one connection, with one inbox, one timer and no task for all of them.

nats-py's `request` needs a task, two timers and a random name for each message. For a small message they take more CPU
time than publishing it and reading its acknowledgement.
"""

import asyncio
from typing import Final, NamedTuple

import nats.errors

from sandherd.bus.errors import BusError, ConnectionLostError, LeaderlessError, PublishFailedError
from sandherd.bus.publish_retries import acknowledgement_timeout
from sandherd.bus.replies import PUBLISH_ERRORS, Acknowledgement, publish_error, read_acknowledgement
from sandherd.bus.tls_client import TlsClient

PublishReply = asyncio.Future[Acknowledgement]
_NO_RESPONDER: Final = b"NATS/1.0 503"
"""How the headers of a reply begin if the subject has no subscriber."""
_CHECKS_PER_TIMEOUT: Final = 5
"""How often it is checked, within the time limit of an acknowledgement, whether the message was written."""


class _Unacknowledged(NamedTuple):
    """A message whose acknowledgement was not received yet."""

    subject: str
    deadline: float
    """A time of the event loop's clock."""
    end: int
    """The number of bytes that the window has published including this message."""
    reply: PublishReply


class PublishWindow:
    """Publishes the messages of one connection, and waits for their acknowledgements."""

    def __init__(self, client: TlsClient, inbox: str) -> None:
        self._client = client
        self._inbox: Final = f"{inbox}."
        self._last_number = self._published_bytes = 0
        self._unacknowledged: dict[int, _Unacknowledged] = {}
        """Messages by the number in the reply subject, in the order of publication. Their futures may be cancelled."""
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def open(cls, client: TlsClient) -> "PublishWindow":
        """Subscribe to the acknowledgements. Raises `PublishFailedError`."""
        window = cls(client, client.new_inbox())
        try:
            client.take_replies(await client.subscribe(f"{window._inbox}*"), window._on_reply)
        except nats.errors.Error as error:
            raise PublishFailedError(f"acknowledgements can't be received: {error!r}") from error
        return window

    def publish(self, subject: str, payload: bytes, *, msg_id: str) -> PublishReply:
        """Publish to a stream, without a retry. The future has the result or the error of `Bus.publish`."""
        loop = asyncio.get_running_loop()
        reply: PublishReply = loop.create_future()
        number = self._last_number = self._last_number + 1
        reply_to = f"{self._inbox}{number}"
        try:
            self._published_bytes += self._client.publish_at_once(subject, reply_to, payload, msg_id=msg_id)
        except PUBLISH_ERRORS as error:
            reply.set_exception(publish_error(subject, error))
            return reply
        timeout = acknowledgement_timeout(clustered=self._client.is_clustered)
        self._unacknowledged[number] = _Unacknowledged(subject, loop.time() + timeout, self._published_bytes, reply)
        if self._timer is None:
            self._timer = loop.call_later(timeout / _CHECKS_PER_TIMEOUT, self._expire)
        return reply

    def fail_all(self) -> None:
        """End all waits with `ConnectionLostError`, because the connection is lost."""
        lost, self._unacknowledged = self._unacknowledged, {}
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiting in lost.values():
            _fail(waiting.reply, ConnectionLostError(f"{waiting.subject}: the connection was lost"))

    def _on_reply(self, inbox: bytes, document: bytes, headers: bytes) -> None:
        token = inbox[len(self._inbox) :]
        waiting = self._unacknowledged.pop(int(token), None) if token.isdigit() else None
        if waiting is None or waiting.reply.done():
            return
        try:
            if headers.startswith(_NO_RESPONDER):
                raise LeaderlessError(f"{waiting.subject}: no stream responds")
            acknowledgement = read_acknowledgement(waiting.subject, document)
        except BusError as error:
            waiting.reply.set_exception(error)
        else:
            waiting.reply.set_result(acknowledgement)

    def _expire(self) -> None:
        """End the waits that have timed out, and set the timer for the next check.

        The time limit begins when a message is written. Otherwise a message on a slow connection would be repeated
        forever.
        """
        now, self._timer = asyncio.get_running_loop().time(), None
        timeout = acknowledgement_timeout(clustered=self._client.is_clustered)
        self._postpone(now + timeout)
        for number, waiting in list(self._unacknowledged.items()):
            if waiting.deadline > now:
                check = min(waiting.deadline, now + timeout / _CHECKS_PER_TIMEOUT)
                self._timer = waiting.reply.get_loop().call_at(check, self._expire)
                return
            del self._unacknowledged[number]
            _fail(waiting.reply, PublishFailedError(f"{waiting.subject}: {TimeoutError()!r}"))

    def _postpone(self, deadline: float) -> None:
        """Postpone the deadlines of messages that are not written yet."""
        written = self._published_bytes - self._client.unsent_bytes
        for number in reversed(self._unacknowledged):
            if (waiting := self._unacknowledged[number]).end <= written:
                return
            self._unacknowledged[number] = waiting._replace(deadline=deadline)


def _fail(reply: PublishReply, error: BusError) -> None:
    if not reply.done():
        reply.set_exception(error)
