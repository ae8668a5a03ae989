"""What the relay says. Each message is a source of its own: 1 is its beginning, 2 and 3 its end. So is each approval.

The id of each event is derived from the message and the number, so that a step that is done twice, by a relay that was
killed in between or by two of them, is one event. It is derived with the relays' key: the message's worker knows all
the rest, and would otherwise publish something else under it first.
"""

import asyncio
from datetime import datetime
from typing import Final
from uuid import UUID

import nats.errors
import nats.js.errors
from pydantic import TypeAdapter, ValidationError

from message_relay.asked import Asked, Decision, digest_of
from message_relay.wording import decided
from sandherd.bus.connection import Bus, full_jitter
from sandherd.bus.reading import last_on
from sandherd.contracts.delivery import InboxMessage
from sandherd.contracts.derived_ids import DerivedIds
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events import EventData
from sandherd.contracts.events.message import MessageDelivered
from sandherd.contracts.subjects import event_subject
from sandherd.telemetry import logs
from sandherd.telemetry.meters import Meters

BEGUN: Final = 1
ENDED: Final = 2
ACKNOWLEDGED: Final = 3
"""After `message.delivered`, which is 2."""
_DELIVERED: Final = TypeAdapter(Envelope[MessageDelivered])
_log: Final = logs.get("saying")


def source_of(message: InboxMessage) -> str:
    """Who speaks in a message's events: the message."""
    return f"/sandherd/message-relay/{message.message}"


def event_id(ids: DerivedIds, message: InboxMessage, number: int) -> UUID:
    """The id of a message's event of this number, whatever it says."""
    # With the sandbox: an agent may send one message to two others, and each has its own events.
    return ids.derive(message.sent_at, message.project, message.sandbox, source_of(message), number)


def event_of(
    ids: DerivedIds, message: InboxMessage, number: int, data: EventData, now: datetime
) -> Envelope[EventData]:
    """The event, with the same id whenever it is made."""
    return wrap(
        data,
        data.type,
        id=event_id(ids, message, number),
        source=source_of(message),
        sequence=number,
        project=message.project,
        subject=message.sandbox,
        sandboxid=message.sandbox,
        time=now,
        traceparent=message.traceparent,
    )


def approval_event(ids: DerivedIds, asked: Asked, number: int, data: EventData, now: datetime) -> Envelope[EventData]:
    """An approval's event, with the same id whenever it is made: 1 is that it was asked for, 2 what became of it."""
    source = f"/sandherd/message-relay/{asked.sandbox}/{digest_of(asked.approval_id)}"
    return wrap(
        data,
        data.type,
        id=ids.derive(asked.asked_at, asked.project, source, number),
        source=source,
        sequence=number,
        project=asked.project,
        subject=asked.sandbox,
        sandboxid=asked.sandbox,
        time=now,
        traceparent=asked.traceparent,
    )


class Saying:
    """The relay's voice."""

    def __init__(self, bus: Bus, meters: Meters) -> None:
        self._bus = bus
        self._meters = meters

    async def say(self, message: InboxMessage, number: int, data: EventData, now: datetime) -> None:
        """Say it, until the broker has it."""
        await self._bus.publish_event(event_of(self._bus.ids, message, number, data, now))
        self._meters.count("sandherd_messages_total", state=data.type.removeprefix("message."))

    async def say_asked(self, asked: Asked, data: EventData, now: datetime) -> None:
        """Say that an agent asks for leave, until the broker has it."""
        await self._bus.publish_event(approval_event(self._bus.ids, asked, BEGUN, data, now))
        self._meters.count("sandherd_approvals_total", state="requested")

    async def say_rejected(self, asked: Asked, data: EventData, now: datetime) -> None:
        """Publish that nobody will be asked, until the broker has it. It is the only event of its approval."""
        await self._bus.publish_event(approval_event(self._bus.ids, asked, BEGUN, data, now))
        self._meters.count("sandherd_approvals_total", state="rejected")

    async def say_decided(self, asked: Asked, decision: Decision) -> None:
        """Say what became of it, until the broker has it. What was answered before it was asked, was so at once."""
        at = max(decision.at, asked.asked_at)
        said = decided(asked.approval_id, decision)
        await self._bus.publish_event(approval_event(self._bus.ids, asked, ENDED, said, at))
        self._meters.count("sandherd_approvals_total", state=decision.state)

    async def was_delivered(self, message: InboxMessage) -> bool:
        """Whether `message.delivered` was said of it, by a relay that did not live to say the rest.

        A sandbox gets one message after the other, so the last one that was delivered is the only one to ask about.
        """
        subject = event_subject(message.project, message.sandbox, MessageDelivered.type)
        attempt = 0
        while True:
            try:
                last = await last_on(self._bus, "EVENTS", subject)
                return _DELIVERED.validate_json(last.data or b"").id == event_id(self._bus.ids, message, ENDED)
            except (nats.js.errors.NotFoundError, ValidationError):
                return False
            except (TimeoutError, nats.errors.Error, nats.js.errors.Error, OSError) as error:
                _log.warning("the events can't be read yet", attempt=attempt, error=repr(error))
            await asyncio.sleep(full_jitter(attempt))
            attempt += 1
