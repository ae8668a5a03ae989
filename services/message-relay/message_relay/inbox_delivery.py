"""Delivers the messages of one sandbox in order: sends each to the worker, then publishes the event of its end."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from pydantic import ValidationError

from message_relay.answer_router import AnswerRoute, AnswerRouter, LeftoverAnswer
from message_relay.delivery_rules import (
    DeliveryStep,
    NoRecipient,
    acknowledged,
    delivered,
    ended,
    expired,
    is_reachable,
    next_step,
    rejection,
)
from message_relay.inbox import FirstMessage, Inbox, InboxEntry, Key
from message_relay.record_reader import sandbox_record
from message_relay.relay_events import ACKNOWLEDGED, ENDED, RelayEvents
from sandherd.bus.connection import Bus, NoResponderError, RequestTimeoutError
from sandherd.concurrency import both
from sandherd.contracts.events.message import MessageExpired, MessageRejected
from sandherd.contracts.inbox_messages import InboxMessage, Receipt
from sandherd.contracts.records import SharedSandboxRecord
from sandherd.contracts.subjects import DELIVER
from sandherd.telemetry import logs, spans
from sandherd.telemetry.meters import Meters
from sandherd.telemetry.traces import record

RECEIPT_WITHIN: Final = 5.0
"""How long a worker has to reply, in seconds. After that the message is delivered again, and the worker recognises it
by its id."""
REPEATED_AFTER: Final = 0.5
"""Seconds without a reply after which the request is repeated. When the broker receives a new JWT of an account, as it
does whenever a sandbox ends, it loses replies between accounts that it has not delivered yet."""
_MAX_MESSAGES_INSPECTED: Final = 256
URGENT: Final = frozenset({"approval", "interrupt"})
"""Message types that an agent may need before it can receive the messages queued ahead of them."""
_log: Final = logs.get("inbox_delivery")


class InboxDelivery:
    """Delivers waiting messages. `check` raises if another relay holds the lease; it is called before every action."""

    def __init__(
        self,
        bus: Bus,
        inbox: Inbox,
        events: RelayEvents,
        answer_router: AnswerRouter,
        meters: Meters,
        *,
        check: Callable[[], None],
    ) -> None:
        self._bus = bus
        self._inbox = inbox
        self._events = events
        self._answer_router = answer_router
        self._meters = meters
        self._check = check

    async def drain(self, key: Key, *, overtake: bool = False, first: FirstMessage | None = None) -> LeftoverAnswer:
        """Deliver all waiting messages in order; with `overtake`, urgent ones first. Returns what remains, and why.

        `overtake` is needed because a worker that does not acknowledge a message may wait for an answer behind it. An
        answer that waits for the next attempt does not block later messages. With `first`, the inbox need not be read.
        """
        waiting, known = first or await both(self._inbox.first(key), sandbox_record(self._bus, *key))
        if overtake and ended(key[1], known) is None and is_reachable(known):
            await self._deliver_urgent(key, known)
            waiting = await self._inbox.first(key)
        after, left = 0, LeftoverAnswer.NOTHING
        while waiting is not None:
            self._check()
            found = await self._process(waiting, key, known)
            if found is LeftoverAnswer.NEXT:
                after, left = waiting.number, LeftoverAnswer.NEXT
            elif found in {LeftoverAnswer.UNAVAILABLE, LeftoverAnswer.SILENT}:
                return found
            waiting = await self._inbox.first(key, after)
        return left

    async def _process(self, waiting: InboxEntry, key: Key, known: SharedSandboxRecord | None) -> LeftoverAnswer:
        """Deliver or end one message. Returns the reason if it still waits."""
        route = await self._answer_router.route(waiting.message)
        if route is not None:
            found = await self._deliver_answer(waiting, route)
            # Another sandbox's worker is unavailable: later messages, which are for this sandbox, are not blocked.
            return (
                LeftoverAnswer.NEXT
                if found in {LeftoverAnswer.UNAVAILABLE, LeftoverAnswer.SILENT} and route.message.sandbox != key[1]
                else found
            )
        return await self._process_message(waiting, key, known)

    async def _process_message(
        self, waiting: InboxEntry, key: Key, known: SharedSandboxRecord | None
    ) -> LeftoverAnswer:
        step = next_step(waiting.message, datetime.now(UTC), ended(key[1], known))
        if step is DeliveryStep.DELIVER:
            if not is_reachable(known):
                return LeftoverAnswer.UNAVAILABLE
            receipt = await self._deliver(waiting.message)
            if isinstance(receipt, Receipt):
                await self._conclude(waiting, receipt)
                return LeftoverAnswer.NOTHING
            known = await sandbox_record(self._bus, *key)
            if ended(key[1], known) is None:
                return receipt
        await self._end_undelivered(waiting, ended(key[1], known))
        return LeftoverAnswer.NOTHING

    async def _deliver_answer(self, waiting: InboxEntry, route: AnswerRoute) -> LeftoverAnswer:
        """Deliver or end an answer, which may have to be delivered to the sandbox of a later attempt."""
        if next_step(route.message, datetime.now(UTC), route.no_recipient) is not DeliveryStep.DELIVER:
            if await self._answer_router.mark_used(route):
                await self._end_undelivered(waiting, route.no_recipient)
            return LeftoverAnswer.NOTHING
        if route.left is not None:
            return route.left
        attempt = await self._answer_router.deliver(route, self._probe, self._deliver)
        if isinstance(attempt.receipt, LeftoverAnswer):
            return attempt.receipt
        if attempt.receipt.outcome == "rejected" and not await self._answer_router.mark_used(attempt.route):
            return LeftoverAnswer.CHANGED
        await self._conclude(waiting, attempt.receipt, attempt.route)
        return LeftoverAnswer.NOTHING

    async def _deliver_urgent(self, key: Key, known: SharedSandboxRecord | None) -> None:
        """Deliver urgent messages in order, until the worker does not acknowledge one."""
        after = 0
        for _ in range(_MAX_MESSAGES_INSPECTED):
            waiting = await self._inbox.first(key, after)
            if waiting is None:
                return
            after = waiting.number
            deliverable = next_step(waiting.message, datetime.now(UTC), None) is DeliveryStep.DELIVER
            if deliverable and waiting.message.message_type in URGENT:
                self._check()
                if await self._process(waiting, key, known) in {LeftoverAnswer.UNAVAILABLE, LeftoverAnswer.SILENT}:
                    return

    async def expire(self, key: Key) -> datetime | None:
        """End expired messages at all positions in the queue. Returns when the next of the inspected ones expires."""
        due: list[datetime] = []
        after = 0
        for _ in range(_MAX_MESSAGES_INSPECTED):
            waiting = await self._inbox.first(key, after)
            if waiting is None:
                break
            after = waiting.number
            route = await self._answer_router.route(waiting.message)
            message = waiting.message if route is None else route.message
            if next_step(message, datetime.now(UTC), None) is not DeliveryStep.EXPIRE:
                due.append(message.expires_at)
                continue
            self._check()
            if route is None or await self._answer_router.mark_used(route):
                await self._end_undelivered(waiting, None)
        return min(due, default=None)

    async def _probe(self, message: InboxMessage) -> LeftoverAnswer | None:
        """Send an empty request to the worker. Returns None if it replies, otherwise why the message can't be sent."""
        subject = DELIVER.fill(project=message.project, sandbox=message.sandbox)
        try:
            await self._request(subject, b"")
        except NoResponderError:
            return LeftoverAnswer.UNAVAILABLE
        except RequestTimeoutError:
            return LeftoverAnswer.SILENT
        return None

    async def _deliver(self, message: InboxMessage) -> Receipt | LeftoverAnswer:
        """Send a message to the worker. Returns its receipt, or the reason why there is no valid receipt."""
        subject = DELIVER.fill(project=message.project, sandbox=message.sandbox)
        payload = message.model_dump_json(exclude_none=True).encode()
        try:
            receipt = Receipt.model_validate_json(await self._request(subject, payload))
        except NoResponderError:
            return LeftoverAnswer.UNAVAILABLE
        except RequestTimeoutError:
            return LeftoverAnswer.SILENT
        except ValidationError:
            _log.warning("invalid receipt from worker", sandbox=message.sandbox, message=message.message)
            return LeftoverAnswer.SILENT
        return receipt if receipt.message == message.message else LeftoverAnswer.SILENT

    async def _request(self, subject: str, payload: bytes) -> bytes:
        """A worker's reply. The request is repeated once after a timeout.

        Raises `NoResponderError` if the worker received nothing, and `RequestTimeoutError` if it may have received it.
        """
        try:
            return await self._bus.request(subject, payload, timeout=min(REPEATED_AFTER, RECEIPT_WITHIN))
        except RequestTimeoutError as first:
            try:
                return await self._bus.request(subject, payload, timeout=RECEIPT_WITHIN)
            except NoResponderError:
                raise first from None

    async def _conclude(self, waiting: InboxEntry, receipt: Receipt, route: AnswerRoute | None = None) -> None:
        """Publish the worker's reply, mark an answer as used, and delete the message."""
        self._check()
        message = waiting.message
        if receipt.outcome == "rejected":
            await self._end(waiting, rejection(message, receipt.reason or "rejected by the worker"))
            return
        now = datetime.now(UTC)
        took = max(0.0, (now - message.sent_at).total_seconds())
        self._meters.observe("sandherd_message_delivery_seconds", took)
        record(spans.DELIVER, message.traceparent, message.sent_at, now, _span_values(message))
        await self._events.publish(message, ENDED, delivered(message, took * 1000), now)
        await self._events.publish(message, ACKNOWLEDGED, acknowledged(message), datetime.now(UTC))
        if route is not None:
            await self._answer_router.mark_used(route)
        await self._inbox.remove(waiting.number)

    async def _end_undelivered(self, waiting: InboxEntry, no_recipient: NoRecipient | None) -> None:
        """End an undelivered message: it is rejected if its sandbox has ended, and expired otherwise."""
        message = waiting.message
        waited = max(0.0, (datetime.now(UTC) - message.sent_at).total_seconds())
        await self._end(
            waiting,
            rejection(message, no_recipient.reason, no_recipient.code)
            if no_recipient
            else expired(message, waited * 1000),
        )

    async def _end(self, waiting: InboxEntry, data: MessageRejected | MessageExpired) -> None:
        """Publish that a message was not delivered, unless a killed relay has published that it was. Then delete it."""
        message = waiting.message
        if await self._events.was_delivered(message):
            await self._events.publish(message, ACKNOWLEDGED, acknowledged(message), datetime.now(UTC))
        else:
            await self._events.publish(message, ENDED, data, datetime.now(UTC))
        await self._inbox.remove(waiting.number)


def _span_values(message: InboxMessage) -> spans.Values:
    return {
        spans.PROJECT: message.project,
        spans.SANDBOX_ID: message.sandbox,
        spans.MESSAGE_ID: message.message,
    }
