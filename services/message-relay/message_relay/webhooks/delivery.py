"""Delivers one webhook: reads its events, sends them, and stores the progress.

The progress is stored after the receiver has accepted an event. So if a relay is killed between the two, the event is
sent again, with the same id. When a request has changed the webhook's record, the delivery is restarted with it.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Final

import nats.errors
from nats.aio.msg import Msg

from message_relay.webhooks import retry_rules
from message_relay.webhooks.event_reader import subject_of, until_read
from message_relay.webhooks.intake import EventIntake
from message_relay.webhooks.queue import DeliveryQueue, QueuedEvent
from message_relay.webhooks.receiver import Receiver
from message_relay.webhooks.secrets import WebhookSecretClient
from message_relay.webhooks.store import StoredWebhook, WebhookStore
from message_relay.webhooks.webhook_record import WebhookRecord, signing
from sandherd.backoff import Backoff
from sandherd.bus.connection import Bus
from sandherd.client.webhooks.sender import SendResult, WebhookMessage
from sandherd.concurrency import cancel_and_wait, run_until_first
from sandherd.contracts.errors import ContractError
from sandherd.contracts.requests import MAX_DEAD, WebhookDeadLetter
from sandherd.contracts.streams import live_subject
from sandherd.telemetry import logs
from sandherd.telemetry.meters import Meters

AT_ONCE: Final = 4
"""Maximum events of one webhook that are sent at the same time, at most one for each task or sandbox."""
_READ_INTERVAL_SECONDS: Final = 15.0
"""Seconds after which the stream is read even without a notice of a new event: notices may be lost."""
_MAX_UNSAVED_MESSAGES: Final = 1000
"""The position is also stored after it has advanced by this number of messages, although none was sent."""
_SECRET_BACKOFF: Final = Backoff(base=0.1, cap=5.0)
_PROBLEM_SHOWN_AT: Final = 6
"""The number of the failed attempt to read the secret after which the webhook shows the problem to users."""
_log: Final = logs.get("webhooks.delivery")


class WebhookChangedError(Exception):
    """The record was changed by a request, or by another replica."""


class WebhookDelivery:
    """The delivery of one webhook by the replica that holds its lease. `check` raises if the lease is lost."""

    def __init__(
        self,
        bus: Bus,
        store: WebhookStore,
        secrets: WebhookSecretClient,
        stored: StoredWebhook,
        receiver: Receiver,
        *,
        meters: Meters,
        check: Callable[[], None],
        disable_after: float,
    ) -> None:
        self._bus = bus
        self._store = store
        self._secrets = secrets
        self._stored = stored
        self._receiver = receiver
        self._meters = meters
        self._check = check
        self._disable_after = disable_after
        self._record = stored.record
        self._intake = EventIntake(bus)
        self._queue = DeliveryQueue(stored.record, retry_rules.RETRIES)
        self._secret_pair: tuple[str, str] = ("", "")
        self._sending: set[asyncio.Task[None]] = set()
        self._changed, self._arrived, self._unsaved = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._space = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def oldest_at(self) -> datetime | None:
        """When the oldest event that is read but not handled was stored; None if there is none."""
        return self._queue.oldest_at

    async def run(self) -> StoredWebhook:
        """Deliver until the webhook is disabled. Returns the stored webhook.

        Raises `WebhookChangedError`, and what `check` raises.
        """
        await self._fetch_secrets()
        await until_read(self._begin)
        try:
            async with self._noticing_events():
                await run_until_first(self._read(), self._send_due(), self._save_until_disabled())
        finally:
            await cancel_and_wait(self._sending)
        return self._stored

    # --- beginning -----------------------------------------------------------------------------------------------

    async def _fetch_secrets(self) -> None:
        """Fetch the secrets, and retry until there is one: a webhook that was just created may have none yet."""
        attempt = 0
        while True:
            try:
                self._secret_pair = await self._secrets.fetch(self._record)
                return
            except ContractError as error:
                _log.warning("secret of a webhook not read, retrying", webhook=self._record.key, error=str(error))
                if attempt == _PROBLEM_SHOWN_AT:
                    self._update(problem=str(error))
                    await self._write()
            await asyncio.sleep(_SECRET_BACKOFF.delay(attempt))
            self._check()
            attempt += 1

    async def _begin(self) -> None:
        """Fill the queue with the events that waited."""
        self._record, self._queue, dropped = await self._intake.begin(self._record)
        self._note_dropped(dropped)

    @asynccontextmanager
    async def _noticing_events(self) -> AsyncIterator[None]:
        """Until the block ends, notice whenever an event of the project was stored, so that the stream is read."""

        async def notice(_msg: Msg) -> None:
            self._arrived.set()

        subscription = await self._bus.client.subscribe(live_subject(subject_of(self._record.project)), cb=notice)
        try:
            yield
        finally:
            with suppress(nats.errors.Error):  # the connection is lost, and the subscription with it
                await subscription.unsubscribe()

    # --- reading -------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            while self._queue.is_full:
                self._space.clear()
                await self._space.wait()
            self._arrived.clear()
            if not await until_read(self._read_once):
                with suppress(TimeoutError):
                    async with asyncio.timeout(_READ_INTERVAL_SECONDS):
                        await self._arrived.wait()

    async def _read_once(self) -> bool:
        found, dropped = await self._intake.read(self._record, self._queue)
        self._note_dropped(dropped)
        if found:
            self._changed.set()
        if self._queue.read_to - self._stored.record.position >= _MAX_UNSAVED_MESSAGES:
            self._unsaved.set()
        return found

    def _note_dropped(self, count: int) -> None:
        if count:
            self._update(dropped=self._record.dropped + count, dropped_at=datetime.now(UTC))
            self._meters.count("sandherd_webhook_events_dropped_total", count)
            _log.warning("events of a webhook dropped by the stream", webhook=self._record.key, events=count)
            self._unsaved.set()

    # --- sending -------------------------------------------------------------------------------------------------

    async def _send_due(self) -> None:
        while self._failure is None:
            self._check()
            self._changed.clear()
            now = datetime.now(UTC)
            while self._can_send and (item := self._queue.next(now)) is not None:
                self._start(item)
            await self._wait_changed(self._queue.seconds_to_next(now))
        raise self._failure

    @property
    def _can_send(self) -> bool:
        return len(self._sending) < AT_ONCE and self._record.disabled_at is None

    async def _wait_changed(self, seconds: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def _start(self, item: QueuedEvent) -> None:
        task = asyncio.create_task(self._send(item))
        self._sending.add(task)
        task.add_done_callback(self._on_sent)

    def _on_sent(self, task: "asyncio.Task[None]") -> None:
        self._sending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error
        self._changed.set()

    async def _send(self, item: QueuedEvent) -> None:
        now = datetime.now(UTC)
        headers = WebhookMessage(item.id, item.body).headers(signing(self._record, self._secret_pair, now), now)
        result = await self._receiver.send(item.body, headers)
        self._settle(item, result, datetime.now(UTC))
        self._unsaved.set()

    def _settle(self, item: QueuedEvent, result: SendResult, now: datetime) -> None:
        if result.is_accepted:
            self._queue.finish(item)
            self._meters.observe("sandherd_webhook_delay_seconds", (now - item.at).total_seconds())
            self._meters.count("sandherd_webhook_deliveries_total", outcome="accepted")
            self._update(accepted_at=now, failing_since=None, problem=None)
            return
        reason, since = retry_rules.shown(result.reason), self._record.failing_since or now
        self._update(failing_since=since, problem=reason)
        if result.wants_no_more or retry_rules.is_over(since, now, self._disable_after):
            self._update(disabled_at=now, published=False)
        given_up = self._queue.fail(item, now, retry_after=result.retry_after, jitter=random.random())
        self._meters.count("sandherd_webhook_deliveries_total", outcome="given_up" if given_up else "failed")
        if given_up:
            self._give_up(item, reason, now)

    def _give_up(self, item: QueuedEvent, reason: str, now: datetime) -> None:
        letter = WebhookDeadLetter(sequence=item.sequence, type=item.type, subject=item.entity, reason=reason, at=now)
        self._queue.finish(item)
        self._update(dead=(*self._record.dead, letter)[-MAX_DEAD:])
        _log.warning("event of a webhook given up", webhook=self._record.key, id=item.id, reason=reason)

    def _update(self, **changes: object) -> None:
        self._record = self._record.model_copy(update=changes)

    # --- storing -------------------------------------------------------------------------------------------------

    async def _save_until_disabled(self) -> None:
        while True:
            await self._unsaved.wait()
            self._unsaved.clear()
            await self._write()
            self._space.set()
            if self._stored.record.disabled_at is not None:
                return

    async def _write(self) -> None:
        self._check()
        record: WebhookRecord = self._record.model_copy(update=self._queue.progress())
        written = await self._store.write(record, self._stored)
        if written is None:
            raise WebhookChangedError(record.key)
        self._stored = written
