"""The INBOX stream: all that waits, and the only state there is. A message is in it until its end has been said."""

import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import nats.js.errors
from nats.js.api import RawStreamMsg
from pydantic import ValidationError

from sandherd.bus.connection import Bus
from sandherd.bus.consuming import Delivery, dead_headers
from sandherd.bus.reading import next_on
from sandherd.contracts.delivery import InboxMessage
from sandherd.contracts.errors import ContractError
from sandherd.contracts.names import UnsafeNameError
from sandherd.contracts.subjects import INBOX, Principal, dead_subject
from sandherd.telemetry import logs

STREAM: Final = "INBOX"
_COUNTED_FOR: Final = 1.0
_log: Final = logs.get("inbox")

Key = tuple[str, str]
"""`(project, sandbox)`."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message, and where it stands in INBOX."""

    number: int
    message: InboxMessage


class Inbox:
    """What waits for each sandbox, in the order in which it was taken."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._counted: dict[str, tuple[int, float]] = {}
        """For each project how many messages wait, and until when that is taken for true."""

    async def put(self, message: InboxMessage) -> bool:
        """Keep a message. False if this very message was kept already, within the broker's window."""
        subject = INBOX.fill(project=message.project, sandbox=message.sandbox)
        ack = await self._bus.publish_stored(
            subject,
            message.model_dump_json(exclude_none=True).encode(),
            msg_id=f"{message.project}.{message.sandbox}.{message.message}",
        )
        return not ack.duplicate

    async def first(self, key: Key, after: int = 0) -> Waiting | None:
        """The first message that waits for a sandbox, behind a place in the stream; None if there is none."""
        subject = INBOX.fill(project=key[0], sandbox=key[1])
        while True:
            try:
                found = await next_on(self._bus, STREAM, subject, after + 1)
            except nats.js.errors.NotFoundError:
                return None
            after = found.seq or 0
            try:
                return Waiting(after, InboxMessage.model_validate_json(found.data or b""))
            except ValidationError as error:
                await self._bury(found, ContractError.from_validation(error))

    async def remove(self, number: int) -> None:
        """Its end has been said. One that is gone already is no fault: another holder may have removed it."""
        try:
            await self._bus.js.delete_msg(STREAM, number)
        except nats.js.errors.APIError as error:
            _log.info("was removed already", number=number, error=error.description)

    async def waiting_in(self, project: str) -> int:
        """How many messages wait for all sandboxes of a project; known anew every second."""
        counted, until = self._counted.get(project, (0, 0.0))
        if time.monotonic() >= until:
            subject = INBOX.pattern({"project": project})
            state = (await self._bus.js.stream_info(STREAM, subjects_filter=subject)).state
            counted, until = sum((state.subjects or {}).values()), time.monotonic() + _COUNTED_FOR
        self._counted[project] = counted + 1, until
        return counted

    async def waiting_sandboxes(self) -> list[Key]:
        """Everyone for whom something waits."""
        state = (await self._bus.js.stream_info(STREAM, subjects_filter=">")).state
        return [key for subject in state.subjects or {} if (key := _key_of(subject)) is not None]

    async def _bury(self, found: RawStreamMsg, fault: ContractError) -> None:
        """One that another version wrote must not hold up those behind it."""
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
    """Whose inbox a subject is. None if no sandbox can have these names: nobody waits for what is stored there."""
    names = INBOX.match(subject) or {}
    with suppress(KeyError, UnsafeNameError):
        INBOX.fill(**names)
        return names["project"], names["sandbox"]
    return None
