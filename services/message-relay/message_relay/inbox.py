"""The stream INBOX with all waiting messages. A message is deleted from it after the event of its end is published."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

import nats.js.errors
from nats.js.api import RawStreamMsg
from pydantic import ValidationError

from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.bus.consumers.consumer import Delivery, dead_headers
from sandherd.bus.errors import WrongLastSequenceError
from sandherd.bus.kv import next_message
from sandherd.bus.replies import Acknowledgement
from sandherd.contracts.errors import ContractError
from sandherd.contracts.headers import EXPECTED_LAST
from sandherd.contracts.inbox_messages import InboxMessage
from sandherd.contracts.names import UnsafeNameError
from sandherd.contracts.records import SharedSandboxRecord
from sandherd.contracts.subjects import INBOX, Principal, dead_subject
from sandherd.telemetry import logs

STREAM: Final = "INBOX"
_COUNT_VALID_SECONDS: Final = 1.0
"""Seconds for which a count of a project's waiting messages is used."""
_log: Final = logs.get("inbox")

Key = tuple[str, str]
"""`(project, sandbox)`."""


@dataclass(frozen=True, slots=True)
class InboxEntry:
    """A message, and its sequence in INBOX."""

    number: int
    message: InboxMessage


class FirstMessage(NamedTuple):
    """A new message that no other message of its sandbox precedes, and the sandbox's record."""

    entry: InboxEntry
    known: SharedSandboxRecord | None


class Inbox:
    """The messages that wait for each sandbox, in order of arrival."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._counted: dict[str, tuple[int, float]] = {}
        """For each project: the number of its waiting messages, and the monotonic second until which that is used."""

    async def store(self, message: InboxMessage, headers: Mapping[str, str] | None = None) -> Acknowledgement:
        """Store a message. The broker drops repetitions within its duplicate window. Raises `SubjectFullError`."""
        subject = INBOX.fill(project=message.project, sandbox=message.sandbox)
        # A message must not be dropped as the duplicate of another one that has the same name.
        identity = message.source or f"{message.message}.{message.sent_at.isoformat()}"
        return await self._bus.publish_stored(
            subject,
            message.model_dump_json(exclude_none=True).encode(),
            msg_id=f"{message.project}.{message.sandbox}.{message.message_type}.{identity}",
            headers=headers,
        )

    async def store_first(self, message: InboxMessage) -> InboxEntry | None:
        """Store a message as `store` does. Returns its entry if no other message waits for its sandbox.

        Returns None if another message waits, or if this message was stored before.
        """
        try:
            stored = await self.store(message, {EXPECTED_LAST: "0"})
        except WrongLastSequenceError:
            await self.store(message)
            return None
        return None if stored.duplicate else InboxEntry(stored.seq, message)

    async def first(self, key: Key, after: int = 0) -> InboxEntry | None:
        """The first waiting message of a sandbox after the stream sequence `after`; None if there is none."""
        subject = INBOX.fill(project=key[0], sandbox=key[1])
        while True:
            try:
                found = await next_message(self._bus, STREAM, subject, after + 1)
            except nats.js.errors.NotFoundError:
                return None
            after = found.seq or 0
            try:
                return InboxEntry(after, InboxMessage.model_validate_json(found.data or b""))
            except ValidationError as error:
                await self._move_to_dead_letters(found, ContractError.from_validation(error))

    async def remove(self, number: int) -> None:
        """Delete a message whose end was published. Another holder of the lease may have deleted it already."""
        try:
            await self._bus.js.delete_msg(STREAM, number)
        except nats.js.errors.APIError as error:
            _log.info("message already deleted", number=number, error=error.description)

    async def waiting_in(self, project: str) -> int:
        """The number of messages that wait for all sandboxes of a project, plus one for each call since it was counted.

        It is counted again after one second.
        """
        if time.monotonic() >= self._counted.get(project, (0, 0.0))[1]:
            await self._count(project)
        counted, until = self._counted.get(project, (0, 0.0))
        self._counted[project] = counted + 1, until
        return counted

    async def count_ahead(self, project: str) -> None:
        """Count in advance, so that the next message waits for a count only if this one fails."""
        counted, until = self._counted.get(project, (0, 0.0))
        if (now := time.monotonic()) < until - _COUNT_VALID_SECONDS / 2:
            return
        self._counted[project] = counted, now + _COUNT_VALID_SECONDS  # so that concurrent calls do not count, too
        try:
            await self._count(project)
        except BROKER_ERRORS:
            self._counted.pop(project, None)

    async def _count(self, project: str) -> None:
        subject = INBOX.pattern({"project": project})
        state = (await self._bus.js.stream_info(STREAM, subjects_filter=subject)).state
        self._counted[project] = sum((state.subjects or {}).values()), time.monotonic() + _COUNT_VALID_SECONDS

    async def waiting_sandboxes(self) -> list[Key]:
        """All sandboxes with waiting messages."""
        state = (await self._bus.js.stream_info(STREAM, subjects_filter=">")).state
        return [key for subject in state.subjects or {} if (key := _key_of(subject)) is not None]

    async def _move_to_dead_letters(self, found: RawStreamMsg, fault: ContractError) -> None:
        """Move an invalid message, for instance of another version, to the dead letters: it would block later ones."""
        number, subject = found.seq or 0, found.subject or ""
        delivery = Delivery(subject, found.data or b"", STREAM, number, 1, datetime.now(UTC))
        service = Principal.MESSAGE_RELAY.value
        await self._bus.publish_stored(
            dead_subject(service, fault.problem.code),
            delivery.data,
            msg_id=f"dead-inbox-{number}",
            headers=dead_headers(service, delivery, fault.problem),
        )
        await self.remove(number)


def _key_of(subject: str) -> Key | None:
    """The project and sandbox of a subject of INBOX. None for invalid names, which no sandbox can have."""
    names = INBOX.match(subject) or {}
    with suppress(KeyError, UnsafeNameError):
        INBOX.fill(**names)
        return names["project"], names["sandbox"]
    return None
