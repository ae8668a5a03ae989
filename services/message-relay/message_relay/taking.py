"""The relay's commands, and what agents say to each other: kept or refused with the reason, and never in silence."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final, cast

from message_relay.answering import Answering
from message_relay.deciding import accepted, ended, may_say, passed_on, queued, rejection, too_many, too_many_of_project
from message_relay.inbox import Inbox, Key
from message_relay.records import recorded_of
from message_relay.saying import BEGUN, Saying
from sandherd.bus.connection import Bus, SubjectFullError
from sandherd.bus.consuming import DONE, Delivery, Outcome, Retry
from sandherd.contracts.commands import AnswerApproval, SendMessage
from sandherd.contracts.delivery import InboxMessage
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import Code
from sandherd.contracts.events.agent import AgentMessageSent
from sandherd.contracts.reading import read_command, read_event

_WHEN_THERE_IS_ROOM: Final = Retry(5.0, "as many messages wait for its sandbox as may")


class Taking:
    """Handles the relay's commands; `wake` is told for whom something new waits."""

    def __init__(
        self,
        bus: Bus,
        inbox: Inbox,
        saying: Saying,
        answering: Answering,
        wake: Callable[[Key], None],
        *,
        most_of_project: int = 2000,
    ) -> None:
        self._most_of_project = most_of_project
        self._bus = bus
        self._inbox = inbox
        self._saying = saying
        self._answering = answering
        self._wake = wake
        self._turns: dict[Key, _Turn] = {}

    async def take(self, delivery: Delivery) -> Outcome:
        """One command. Raises `ContractError` for one that breaks the contract."""
        command = cast("Envelope[SendMessage | AnswerApproval]", read_command(delivery.subject, delivery.data))
        async with self._in_order((command.project, command.data.sandbox)):
            if isinstance(command.data, AnswerApproval):
                return await self._answer(cast("Envelope[AnswerApproval]", command), delivery)
            message = accepted(cast("Envelope[SendMessage]", command), delivery.at)
            return await self._take(message, first_time=delivery.deliveries == 1)

    async def pass_on(self, delivery: Delivery) -> Outcome:
        """What an agent says to another of its project. Raises `ContractError` for what breaks the contract."""
        event = cast("Envelope[AgentMessageSent]", read_event(delivery.subject, delivery.data))
        message = passed_on(event, delivery.at)
        async with self._in_order((message.project, message.sandbox)):
            refused = may_say(message)
            if refused is not None:
                return await self._reject(message, refused, Code.REFUSED)
            return await self._take(message, first_time=delivery.deliveries == 1)

    async def _answer(self, command: Envelope[AnswerApproval], delivery: Delivery) -> Outcome:
        """Decide an approval. What decided it is kept for the agent, and waits where there is no room."""
        decided = await self._answering.decide(command, delivery.at)
        if isinstance(decided, Retry):
            return decided
        message, refused = decided
        if refused is not None:
            return await self._reject(message, refused.reason, refused.code)
        try:
            await self._inbox.put(message)
        except SubjectFullError:
            return _WHEN_THERE_IS_ROOM
        return await self._wait(message)

    async def _take(self, message: InboxMessage, *, first_time: bool) -> Outcome:
        """Refuse it or keep it: a sandbox that is gone, or for which enough waits already, gets no more.

        A command that comes again was perhaps kept before a relay was killed, and even delivered. So it is kept again
        whatever has become of its sandbox: the pump ends it, with the number that an end has.
        """
        gone = ended(message.sandbox, await recorded_of(self._bus, message.project, message.sandbox))
        if gone is not None and first_time:
            return await self._reject(message, gone.reason)
        if first_time and await self._inbox.waiting_in(message.project) >= self._most_of_project:
            full = too_many_of_project(message.project, self._most_of_project)
            return await self._reject(message, full, Code.REFUSED)
        try:
            new = await self._inbox.put(message)
        except SubjectFullError:
            # One that comes again may be among those that wait: nothing is said of it before it is known.
            if not first_time:
                return _WHEN_THERE_IS_ROOM
            return await self._reject(message, too_many(message.sandbox), Code.REFUSED)
        if not new and first_time:
            return DONE  # another command said the same message; its own handling says what becomes of it
        return await self._wait(message)

    async def _wait(self, message: InboxMessage) -> Outcome:
        await self._saying.say(message, BEGUN, queued(message), datetime.now(UTC))
        self._wake((message.project, message.sandbox))
        return DONE

    async def _reject(self, message: InboxMessage, reason: str, code: str | None = None) -> Outcome:
        await self._saying.say(message, BEGUN, rejection(message, reason, code), datetime.now(UTC))
        return DONE

    @asynccontextmanager
    async def _in_order(self, key: Key) -> AsyncIterator[None]:
        """One command of a sandbox at a time, first come, first served, while those of others go on."""
        turn = self._turns.setdefault(key, _Turn())
        turn.waiting += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.waiting -= 1
            if not turn.waiting:
                del self._turns[key]


class _Turn:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.waiting = 0
