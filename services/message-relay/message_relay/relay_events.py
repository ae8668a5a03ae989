"""The relay's events.

Each message, and each approval, is an event source. The sequences of a message are 1 when it is queued, 2 when it is
delivered or ends without that, and 3 when the agent has received it; those of an approval are 1 for the request and 2
for the decision. The rejection of a command, or of an agent's message, has a source of its own, because another message
may have the same name.

The id of an event is derived from the message and the sequence. So a step that is done twice, by two relays or after
one was killed, results in one event. The derivation uses the relays' secret key: the message's worker knows all other
inputs, and could otherwise publish another event with this id first.
"""

from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import nats.js.errors
from pydantic import BaseModel, ValidationError

from message_relay.approval import Approval, ApprovalDecision, digest_of
from message_relay.approval_messages import decided
from message_relay.broker_retries import until_reply
from sandherd.bus.connection import Bus
from sandherd.bus.consumers.consumer import Delivery
from sandherd.bus.kv import last_message
from sandherd.concurrency import KeyedLocks
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events import EventData
from sandherd.contracts.events.message import MessageDelivered, MessageRejected
from sandherd.contracts.inbox_messages import InboxMessage
from sandherd.contracts.names import DerivedIds
from sandherd.contracts.subjects import event_subject
from sandherd.telemetry import logs
from sandherd.telemetry.meters import Meters

BEGUN: Final = 1
"""The sequence of `message.queued`, `approval.requested`, and rejections of commands and requests."""
ENDED: Final = 2
"""The sequence of the end of a message's delivery, and of an approval's decision."""
ACKNOWLEDGED: Final = 3
"""The sequence of `message.acknowledged`; that of `message.delivered` is `ENDED`."""
_SERVICE: Final = "/sandherd/message-relay"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_log: Final = logs.get("events")


class _Published(BaseModel):
    """The field of a published event that is read back."""

    id: UUID


def named_source(name: str, token: UUID) -> str:
    """A source of events that no other message has, also not one of the same name: it contains the token."""
    return f"{_SERVICE}/{name}/{token.hex}"


def source_of(message: InboxMessage) -> str:
    """The source of a message's events: as it is stored with the message, or made of the message's name."""
    return message.source or f"{_SERVICE}/{message.message}"


def _time_of_source(source: str) -> datetime:
    """The time in the token of a source. It is the same at each delivery of the message; `sent_at` may differ."""
    return _EPOCH + timedelta(milliseconds=UUID(source.rpartition("/")[2]).int >> 80)


def rejection_id(ids: DerivedIds, delivery: Delivery) -> UUID:
    """The id of the event that rejects a command or an agent's message. It is the same at each redelivery."""
    return ids.derive(delivery.at, delivery.subject, delivery.stream_sequence, MessageRejected.type)


def event_id(ids: DerivedIds, message: InboxMessage, number: int) -> UUID:
    """The id of a message's event with this sequence, independent of its content."""
    # The sandbox is included because an agent may send one message to two others: each has its own events.
    at = message.sent_at if message.source is None else _time_of_source(message.source)
    return ids.derive(at, message.project, message.sandbox, source_of(message), number)


def event_of(
    ids: DerivedIds, message: InboxMessage, number: int, data: EventData, now: datetime
) -> Envelope[EventData]:
    """An event of a message. Its id is the same whenever it is created."""
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


def approval_event(
    ids: DerivedIds, approval: Approval, number: int, data: EventData, now: datetime
) -> Envelope[EventData]:
    """An event of an approval: sequence 1 is the request, 2 the decision. Its id is the same whenever it is created."""
    source = f"{_SERVICE}/{approval.sandbox}/{digest_of(approval.approval_id)}"
    return wrap(
        data,
        data.type,
        id=ids.derive(approval.asked_at, approval.project, source, number),
        source=source,
        sequence=number,
        project=approval.project,
        subject=approval.sandbox,
        sandboxid=approval.sandbox,
        time=now,
        traceparent=approval.traceparent,
    )


class RelayEvents:
    """Publishes the relay's events."""

    def __init__(self, bus: Bus, meters: Meters) -> None:
        self._bus = bus
        self._meters = meters
        self._in_order: KeyedLocks[tuple[str, str, str]] = KeyedLocks()

    async def publish(self, message: InboxMessage, number: int, data: EventData, now: datetime) -> None:
        """Publish an event of a message until the broker has stored it, after its events that are being published."""
        async with self._in_order.hold((message.project, message.sandbox, source_of(message))):
            await self._bus.publish_event(event_of(self._bus.ids, message, number, data, now))
        self._meters.count("sandherd_messages_total", state=data.type.removeprefix("message."))

    async def publish_rejection(self, message: InboxMessage, delivery: Delivery, data: MessageRejected) -> None:
        """Publish that a command or an agent's message is rejected, until the broker has stored it. Idempotent."""
        id_ = rejection_id(self._bus.ids, delivery)
        event = wrap(
            data,
            data.type,
            id=id_,
            source=named_source(message.sandbox, id_),
            sequence=BEGUN,
            project=message.project,
            subject=message.sandbox,
            sandboxid=message.sandbox,
            time=delivery.at,
            traceparent=message.traceparent,
        )
        await self._bus.publish_event(event)
        self._meters.count("sandherd_messages_total", state="rejected")

    async def was_rejected(self, project: str, sandbox: str, delivery: Delivery) -> bool:
        """Whether a relay has published the rejection of this command and was killed before it acknowledged it.

        The commands of a sandbox are handled one after the other, so only its last rejection has to be checked.
        """
        if delivery.deliveries == 1:
            return False
        last = await self._last_id(event_subject(project, sandbox, MessageRejected.type))
        return last == rejection_id(self._bus.ids, delivery)

    async def publish_requested(self, approval: Approval, data: EventData, now: datetime) -> None:
        """Publish that an approval is requested, until the broker has stored it."""
        await self._bus.publish_event(approval_event(self._bus.ids, approval, BEGUN, data, now))
        self._meters.count("sandherd_approvals_total", state="requested")

    async def publish_rejected(self, approval: Approval, data: EventData, now: datetime) -> None:
        """Publish that a request is rejected, until the broker has stored it. It is the only event of this approval."""
        await self._bus.publish_event(approval_event(self._bus.ids, approval, BEGUN, data, now))
        self._meters.count("sandherd_approvals_total", state="rejected")

    async def publish_decided(self, approval: Approval, decision: ApprovalDecision) -> None:
        """Publish the decision, until the broker has stored it. Its time is not before the time of the request."""
        at = max(decision.at, approval.asked_at)
        event_data = decided(approval.approval_id, decision)
        await self._bus.publish_event(approval_event(self._bus.ids, approval, ENDED, event_data, at))
        self._meters.count("sandherd_approvals_total", state=decision.state)

    async def was_delivered(self, message: InboxMessage) -> bool:
        """Whether a relay has published `message.delivered` for a message, and was killed before the next event.

        A sandbox gets one message after the other, so only its last `message.delivered` has to be checked.
        """
        last = await self._last_id(event_subject(message.project, message.sandbox, MessageDelivered.type))
        return last == event_id(self._bus.ids, message, ENDED)

    async def _last_id(self, subject: str) -> UUID | None:
        """The id of the last event on a subject; None if there is no event, or if it is invalid."""

        async def read() -> UUID | None:
            try:
                last = await last_message(self._bus, "EVENTS", subject)
                return _Published.model_validate_json(last.data or b"").id
            except (nats.js.errors.NotFoundError, ValidationError):
                return None

        return await until_reply(read, _log_unread)


def _log_unread(attempt: int, error: Exception) -> None:
    _log.warning("last event not read, retrying", attempt=attempt, error=repr(error))
