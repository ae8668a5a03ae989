"""Sends a message to an agent, and waits for its outcome."""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from sandherd.client.connection import Connection
from sandherd.client.errors import HerdError, ServiceUnavailableError, validated
from sandherd.client.events import decoder
from sandherd.client.events.decoder import Event
from sandherd.contracts.commands import AnswerApproval, SendableMessageType, SendMessage
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import Code
from sandherd.contracts.events.message import MessageRefused, MessageRejected
from sandherd.contracts.names import new_name
from sandherd.contracts.requests import ListEvents
from sandherd.contracts.states import MessageState
from sandherd.contracts.subjects import BY_NAME

_FINAL_STATES: Final = frozenset({MessageState.ACKNOWLEDGED, MessageState.REJECTED, MessageState.EXPIRED})
RELAY_SOURCE: Final = "/sandherd/message-relay/"
POLL_SECONDS: Final = 2.0
"""The interval between requests to the history."""


@dataclass(frozen=True)
class MessageOutcome:
    """The outcome of a message. `delivery_ms` is the time from the command to the worker's receipt, in ms."""

    message: str
    sandbox: str
    state: MessageState
    delivery_ms: float | None = None
    reason: str | None = None
    code: str | None = None
    """The error code of the reason, if there is one."""


class MessageReceipts:
    """Waits for the final state of one message, by its live events, and by the history in case events are missed.

    `message.rejected` has the name of the message. `message.refused` has only the id of the command. Both may have
    another source than the other events of the message, so the history is also searched for them by the sandbox.
    """

    def __init__(self, connection: Connection, message: str, sandbox: str) -> None:
        self.delivery = MessageOutcome(message, sandbox, MessageState.QUEUED)
        self._connection = connection
        self._command_id: str | None = None
        self._refusals: list[Event] = []
        self._ended = asyncio.Event()

    def note_sent(self, command: Envelope[Any]) -> None:
        """Note the id of the sent command, by which its refusal is recognized, even one that was received before."""
        self._command_id = str(command.id)
        for event in self._refusals:
            self._note_refusal(event)

    async def receive(self, subject: str, document: bytes) -> None:
        """Handle a message of the live subscription."""
        event = decoder.from_live(subject, document)
        if event is not None:
            self._note(event)

    async def wait(self, timeout: float) -> MessageOutcome:
        """Wait for the final state. Raises `HerdError` (`unavailable`) if it is not reached in `timeout` seconds."""
        deadline = asyncio.get_running_loop().time() + timeout
        while not self._ended.is_set():
            remaining = deadline - asyncio.get_running_loop().time()
            if remaining <= 0:
                raise self._no_receipt_error(timeout)
            try:
                async with asyncio.timeout(min(remaining, POLL_SECONDS)):
                    await self._ended.wait()
            except TimeoutError:
                await self._read_history()
        return self.delivery

    async def _read_history(self) -> None:
        types = [MessageRejected.type, MessageRefused.type]
        for request in (
            ListEvents(source=RELAY_SOURCE + self.delivery.message),
            ListEvents(entity=self.delivery.sandbox, types=types, newest_first=True),
        ):
            try:
                reply = await self._connection.request(request)
            except ServiceUnavailableError:
                return
            for stored_event in reply.events:
                self._note(decoder.from_history(stored_event))

    def _note(self, event: Event) -> None:
        domain, _, action = event.type.partition(".")
        if event.type == MessageRefused.type and self._command_id is None:
            self._refusals.append(event)
        elif event.type == MessageRefused.type:
            self._note_refusal(event)
        elif domain != "message" or getattr(event.data, "message_id", None) != self.delivery.message:
            return
        elif action in set(MessageState):
            self._set(MessageState(action), event)

    def _note_refusal(self, event: Event) -> None:
        if event.data.command_id == self._command_id:
            self._set(MessageState.REJECTED, event)

    def _set(self, state: MessageState, event: Event) -> None:
        previous = self.delivery
        if previous.state in _FINAL_STATES:
            return
        self.delivery = MessageOutcome(
            previous.message,
            previous.sandbox,
            state,
            getattr(event.data, "delivery_ms", previous.delivery_ms),
            getattr(event.data, "reason", previous.reason),
            getattr(event.data, "code", previous.code),
        )
        if self.delivery.state in _FINAL_STATES:
            self._ended.set()

    def _no_receipt_error(self, timeout: float) -> HerdError:
        return HerdError.of(
            Code.UNAVAILABLE,
            f"message {self.delivery.message} is {self.delivery.state}; no receipt within {timeout:g} s",
            remedy=f"it stays in the inbox; see `sandherd events {self.delivery.sandbox} --type message.`",
        )


async def send(connection: Connection, command: SendMessage) -> str:
    """Send a message. The broker has stored it when this returns. Returns the name of the message."""
    await connection.command(command, command.sandbox)
    return command.message


async def deliver(connection: Connection, command: SendMessage | AnswerApproval, timeout: float) -> MessageOutcome:
    """Send a message or an answer, and wait for its final state. Raises `HerdError` (`unavailable`) without one."""
    receipts = MessageReceipts(connection, command.message, command.sandbox)
    subject = BY_NAME["event.message"].pattern({"project": connection.project, "entity": command.sandbox})
    subscription = await connection.listen(subject, receipts.receive)
    try:
        await connection.flush()
        receipts.note_sent(await connection.command(command, command.sandbox))
        return await receipts.wait(timeout)
    finally:
        await subscription.unsubscribe()


def message(sandbox: str, text: str, message_type: SendableMessageType, expires_seconds: int) -> SendMessage:
    """A new message. Raises `HerdError` naming the invalid field."""
    return validated(
        SendMessage,
        message=new_name("msg"),
        sandbox=sandbox,
        content=text,
        message_type=message_type,
        expires_seconds=expires_seconds,
    )
