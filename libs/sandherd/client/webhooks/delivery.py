"""Delivers the events of a subscription to a URL, in order for each task and sandbox, with retries.

An event is acknowledged when its receiver has accepted it, or when it was given up and written to the file of dead
letters. So if the program is killed between any two steps, the event is delivered again, with the same id.
"""

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from sandherd.backoff import Backoff
from sandherd.client.errors import HerdError
from sandherd.client.herd import Herd
from sandherd.client.subscriptions import EventStream, ReceivedEvent
from sandherd.client.webhooks.arrival_order import ArrivalOrder
from sandherd.client.webhooks.sender import Sender, SendResult, WebhookMessage
from sandherd.concurrency import cancel_and_wait
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import Subscription
from sandherd.webhook_signatures import PREFIX

MAX_CONCURRENT_WEBHOOKS: Final = 8
"""Maximum number of webhooks that are sent at the same time. Those of one task or sandbox are sent one by one."""
RETRY_BACKOFF: Final = Backoff(base=1.0, cap=300.0, jitter=0.5)
_EXTENSIONS_PER_ACK_WAIT: Final = 3
"""How often the acknowledgement deadline of an event is extended in the time of one deadline."""


@dataclass(frozen=True)
class DeliveryLimits:
    """The time limits after which an event, or the whole delivery, is given up."""

    age: timedelta = timedelta(hours=24)
    """How long an event is retried, from the first attempt of this program."""
    failing: timedelta = timedelta(days=5)
    """How long the receiver may accept no event before the whole delivery ends."""


def retry_delay(
    reply: SendResult, failures: int, first_attempt_at: datetime, now: datetime, limits: DeliveryLimits
) -> float | None:
    """Seconds until a webhook that was not accepted is sent again; None if it is given up."""
    delay = max(RETRY_BACKOFF.delay(failures), reply.retry_after or 0.0)
    return None if now + timedelta(seconds=delay) - first_attempt_at > limits.age else delay


@dataclass
class WebhookDelivery:
    """The delivery of one subscription to one URL.

    `secrets` returns the secrets that sign the webhooks, `dead_letters` is the file of dead letters, and `report` is
    called with each problem, as a line of text.
    """

    herd: Herd
    subscription: str
    sender: Sender
    secrets: Callable[[], tuple[str, ...]]
    dead_letters: Path | None
    limits: DeliveryLimits = DeliveryLimits()
    report: Callable[[str], None] = lambda _text: None
    _last_by_entity: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    _running: "set[asyncio.Task[None]]" = field(default_factory=set)
    _send_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT_WEBHOOKS))
    _accepted_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    async def run(self) -> None:
        """Deliver until cancelled.

        Raises `HerdError` if the receiver responds with 410, or accepts no event for `limits.failing`.
        """
        subscription = await self._subscription()
        self._order: ArrivalOrder[ReceivedEvent] = ArrivalOrder(subscription.unacknowledged)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended = ended
        receiving = asyncio.create_task(self._receive(subscription))
        try:
            await asyncio.wait([receiving, ended], return_when=asyncio.FIRST_COMPLETED)
            await (ended if ended.done() else receiving)
        finally:
            await cancel_and_wait([receiving])  # first, so that this program does not receive events that it gives back
            await cancel_and_wait(self._running)
            ended.cancel()

    async def _subscription(self) -> Subscription:
        subscriptions = (await self.herd.subscriptions()).subscriptions
        matching = next((each for each in subscriptions if each.name == self.subscription), None)
        if matching is None:
            text = f"there is no subscription {self.subscription}"
            remedy = f"create it with `sandherd subscriptions create {self.subscription}`"
            raise HerdError.of(Code.NOT_FOUND, text, field="name", remedy=remedy)
        return matching

    async def _receive(self, subscription: Subscription) -> None:
        self._extend_seconds = subscription.ack_wait_seconds / _EXTENSIONS_PER_ACK_WAIT
        async with self.herd.receive(self.subscription) as stream:
            releasing = asyncio.create_task(self._release_later(subscription.ack_wait_seconds * 2))
            try:
                await self._receive_events(stream)
            finally:
                await cancel_and_wait([releasing])

    async def _receive_events(self, stream: EventStream) -> None:
        async for received in stream:
            for next_event in self._order.add(received.stream_sequence, received.deliveries, received):
                self._start(next_event)

    async def _release_later(self, seconds: float) -> None:
        """After `seconds`, deliver the held events, and wait no longer for the unacknowledged earlier events."""
        await asyncio.sleep(seconds)
        for held in self._order.release():
            self._start(held)

    def _start(self, received: ReceivedEvent) -> None:
        entity = received.event.subject
        task = asyncio.create_task(self._deliver(received, self._last_by_entity.get(entity)))
        self._last_by_entity[entity] = task
        self._running.add(task)
        task.add_done_callback(lambda done: self._delivery_done(entity, done))

    def _delivery_done(self, entity: str, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        if self._last_by_entity.get(entity) is task:
            del self._last_by_entity[entity]
        if not task.cancelled() and (error := task.exception()) is not None and not self._ended.done():
            self._ended.set_exception(error)

    async def _deliver(self, received: ReceivedEvent, previous: "asyncio.Task[None] | None") -> None:
        """Deliver an event after the previous event of the same task or sandbox."""
        extending = asyncio.create_task(self._extend_deadline(received))
        acknowledged = False
        try:
            if previous is not None:
                await asyncio.wait([previous])
                if previous.cancelled() or previous.exception() is not None:
                    return  # this event is redelivered, after the previous one
            await self._send_until_accepted(received)
            await received.ack()
            acknowledged = True
            self._order.done(received.stream_sequence)
        finally:
            await cancel_and_wait([extending])
            if not acknowledged:
                await received.give_back()

    async def _extend_deadline(self, received: ReceivedEvent) -> None:
        while True:
            await asyncio.sleep(self._extend_seconds)
            await received.continue_work()

    async def _send_until_accepted(self, received: ReceivedEvent) -> None:
        event = received.event
        webhook = WebhookMessage(str(event.id), event.model_dump_json(exclude_none=True).encode())
        first_attempt_at, failures = datetime.now(UTC), 0
        while not (reply := await self._send(webhook)).is_accepted:
            now = datetime.now(UTC)
            self._check_receiver(reply, now)
            delay = retry_delay(reply, failures, first_attempt_at, now, self.limits)
            if delay is None:
                await asyncio.to_thread(self._write_dead_letter, received, webhook, reply)
                return
            if failures == 0:
                self.report(f"{event.type} {event.id} was not accepted, retrying: {reply.reason}")
            failures += 1
            await asyncio.sleep(delay)
        self._accepted_at = datetime.now(UTC)

    async def _send(self, webhook: WebhookMessage) -> SendResult:
        async with self._send_slots:
            headers = webhook.headers(self.secrets(), datetime.now(UTC))
            return await asyncio.to_thread(self.sender.send, webhook.body, headers)

    def _check_receiver(self, reply: SendResult, now: datetime) -> None:
        if reply.wants_no_more:
            text = "the receiver responds with 410: it wants no more webhooks"
            raise HerdError.of(Code.REFUSED, text, remedy="correct the URL, and start again: no event is lost")
        if now - self._accepted_at > self.limits.failing:
            text = f"the receiver has accepted nothing since {self._accepted_at:%Y-%m-%d %H:%M} UTC: {reply.reason}"
            raise HerdError.of(Code.UNAVAILABLE, text, remedy="fix the receiver, and start again: no event is lost")

    def _write_dead_letter(self, received: ReceivedEvent, webhook: WebhookMessage, reply: SendResult) -> None:
        """Report the event as given up, and append it durably to the file of dead letters, if there is one."""
        self.report(f"{received.event.type} {webhook.id} is given up: {reply.reason}")
        if self.dead_letters is None:
            return
        line = {"sequence": received.stream_sequence, "reason": reply.reason, "event": json.loads(webhook.body)}
        with self.dead_letters.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def read_secrets(path: Path) -> tuple[str, ...]:
    """The secrets in a file, one in each line: more than one during a rotation. Raises `HerdError`."""
    try:
        secrets = tuple(path.read_text()[:4096].split())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        remedy = "create it with `sandherd webhooks secret > FILE`"
        raise HerdError.of(
            Code.INVALID_FIELD, f"{path} can't be read: {why}", field="secret_file", remedy=remedy
        ) from None
    if not secrets or not all(line.startswith(PREFIX) for line in secrets):
        remedy = "create it with `sandherd webhooks secret > FILE`"
        raise HerdError.of(
            Code.INVALID_FIELD, f"{path} does not have a secret in each line", field="secret_file", remedy=remedy
        )
    return secrets
