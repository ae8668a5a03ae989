"""Saying something to an agent, and waiting for what becomes of it."""

import asyncio
from dataclasses import dataclass
from typing import Final

from sandherd.client import heard
from sandherd.client.connection import Connection
from sandherd.client.errors import HerdError, ServiceAwayError, made
from sandherd.client.heard import Event
from sandherd.contracts.commands import AnswerApproval, Sayable, SendMessage
from sandherd.contracts.errors import Code
from sandherd.contracts.names import new_name
from sandherd.contracts.requests import AskEvents
from sandherd.contracts.states import MessageState
from sandherd.contracts.subjects import BY_NAME

ENDS: Final = frozenset({MessageState.ACKNOWLEDGED, MessageState.REJECTED, MessageState.EXPIRED})
RELAY_SOURCE: Final = "/sandherd/message-relay/"
LOOK_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Delivery:
    """What became of a message. `delivery_ms` is from the command to the worker's answer, as the relay measured it."""

    message: str
    sandbox: str
    state: MessageState
    delivery_ms: float | None = None
    reason: str | None = None
    code: str | None = None
    """The kind of the reason, where there is one."""


class Receipts:
    """The receipts of one message, heard live; what was not heard is asked of the history."""

    def __init__(self, connection: Connection, message: str, sandbox: str) -> None:
        self.delivery = Delivery(message, sandbox, MessageState.QUEUED)
        self._connection = connection
        self._ended = asyncio.Event()

    async def hear(self, subject: str, document: bytes) -> None:
        """Take a message of the live stream."""
        event = heard.live(subject, document)
        if event is not None:
            self._note(event)

    async def wait(self, timeout: float) -> Delivery:
        """Wait for the end. Raises `HerdError` (`unavailable`) if none came in `timeout` seconds."""
        deadline = asyncio.get_running_loop().time() + timeout
        while not self._ended.is_set():
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise self._no_receipt(timeout)
            try:
                async with asyncio.timeout(min(left, LOOK_SECONDS)):
                    await self._ended.wait()
            except TimeoutError:
                await self._look()
        return self.delivery

    async def _look(self) -> None:
        try:
            kept = await self._connection.ask(AskEvents(source=RELAY_SOURCE + self.delivery.message))
        except ServiceAwayError:
            return
        for stored in kept.events:
            self._note(heard.kept(stored))

    def _note(self, event: Event) -> None:
        domain, _, action = event.type.partition(".")
        if domain != "message" or event.data.message_id != self.delivery.message or action not in set(MessageState):
            return
        before = self.delivery
        if before.state in ENDS:
            return
        self.delivery = Delivery(
            before.message,
            before.sandbox,
            MessageState(action),
            getattr(event.data, "delivery_ms", before.delivery_ms),
            getattr(event.data, "reason", before.reason),
            getattr(event.data, "code", before.code),
        )
        if self.delivery.state in ENDS:
            self._ended.set()

    def _no_receipt(self, timeout: float) -> HerdError:
        return HerdError.of(
            Code.UNAVAILABLE,
            f"message {self.delivery.message} is {self.delivery.state}; no receipt within {timeout:g} s",
            remedy=f"it stays in the inbox; look with `sandherd events {self.delivery.sandbox} --type message.`",
        )


async def send(connection: Connection, command: SendMessage) -> str:
    """Say it; the broker keeps it when this returns. Returns the message's name."""
    await connection.command(command, command.sandbox)
    return command.message


async def deliver(connection: Connection, command: SendMessage | AnswerApproval, timeout: float) -> Delivery:
    """Say it and wait for the receipt."""
    receipts = Receipts(connection, command.message, command.sandbox)
    subject = BY_NAME["event.message"].pattern({"project": connection.project, "entity": command.sandbox})
    subscription = await connection.listen(subject, receipts.hear)
    try:
        await connection.settle()
        await connection.command(command, command.sandbox)
        return await receipts.wait(timeout)
    finally:
        await subscription.unsubscribe()


def message(sandbox: str, text: str, message_type: Sayable, expires_seconds: int) -> SendMessage:
    """A new message. Raises `HerdError` naming the field that is wrong."""
    return made(
        SendMessage,
        message=new_name("msg"),
        sandbox=sandbox,
        content=text,
        message_type=message_type,
        expires_seconds=expires_seconds,
    )
