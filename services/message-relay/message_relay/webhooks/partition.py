"""A partition of the webhooks. The replica that holds the partition's lease delivers its webhooks."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final
from zlib import crc32

from message_relay.webhooks.delivery import WebhookChangedError, WebhookDelivery
from message_relay.webhooks.disabled_event import publish_disabled
from message_relay.webhooks.receiver import Receiver
from message_relay.webhooks.secrets import WebhookSecretClient
from message_relay.webhooks.store import StoredWebhook, WebhookChange, WebhookStore
from sandherd.bus.broker_errors import READ_ERRORS
from sandherd.bus.lease import Lease, LeaseLostError
from sandherd.concurrency import aligned_delay, cancel_and_wait
from sandherd.contracts.errors import ContractError
from sandherd.service.service import Service
from sandherd.telemetry import logs

PARTITIONS: Final = 4
"""The number of partitions into which webhooks are divided by their names. The replicas share them."""
SCANNED_EVERY: Final = 1.0
"""Seconds between two reads of the changes of webhooks."""
PAUSE: Final = 30.0
"""Seconds until a delivery that failed unexpectedly is restarted."""
_log: Final = logs.get("webhooks.partition")


def partition_of(key: str) -> int:
    """The number of the partition of a webhook."""
    return crc32(key.encode()) % PARTITIONS


class WebhookPartition:
    """Delivers the webhooks of one partition."""

    def __init__(self, service: Service, number: int, store: WebhookStore, secrets: WebhookSecretClient) -> None:
        self._service = service
        self.number = number
        self._store = store
        self._secrets = secrets
        self.lease = Lease(service.bus, f"message-relay.webhooks-{number}", service.instance)
        self._woken = asyncio.Event()
        self._running: dict[str, tuple[int, asyncio.Task[None]]] = {}
        """For each webhook: the number of its last edit, and the task that delivers it."""
        self._deliveries: dict[str, WebhookDelivery] = {}

    def wake(self) -> None:
        """Read the changes of webhooks now, because a request was handled in this replica."""
        self._woken.set()

    def oldest_seconds(self) -> float:
        """The age of the oldest event that waits for a receiver, for metrics; 0 if none waits."""
        found = [at for one in self._deliveries.values() if (at := one.oldest_at) is not None]
        return (datetime.now(UTC) - min(found)).total_seconds() if found else 0.0

    async def run(self) -> None:
        """Deliver whenever the lease is held."""
        await self.lease.run_with(self._while_held())

    async def _while_held(self) -> None:
        while True:
            await self.lease.wait_held()
            await self._deliver_until_lost()

    async def _deliver_until_lost(self) -> None:
        """Deliver until the lease is lost. Each change by a request restarts the webhook's delivery."""
        seen, fence = 0, self.lease.fence
        try:
            while self.lease.held and self.lease.fence == fence:  # another fence: lost and acquired again
                self._woken.clear()
                seen = await self._scan(seen)
                with suppress(TimeoutError):
                    async with asyncio.timeout(aligned_delay(SCANNED_EVERY)):
                        await self._woken.wait()
        finally:
            await cancel_and_wait([task for _, task in self._running.values()])
            self._running.clear()

    async def _scan(self, seen: int) -> int:
        """Start, restart and end deliveries by the changes after the revision `seen`. Returns the last revision."""
        try:
            while changes := await self._store.changes(seen):
                for change in changes:
                    await self._apply(change)
                seen = changes[-1].revision
        except READ_ERRORS as error:
            _log.warning("webhooks not read, retrying", error=repr(error))
        return seen

    async def _apply(self, change: WebhookChange) -> None:
        key = change.key
        known = self._running.get(key)
        if partition_of(key) != self.number or (known is not None and known[0] == change.edit):
            return
        if known is not None:
            await cancel_and_wait([known[1]])
            del self._running[key]
        if change.edit is not None:
            self._running[key] = change.edit, asyncio.create_task(self._deliver(key), name=f"webhook {key}")

    async def _deliver(self, key: str) -> None:
        """Deliver a webhook until it is disabled or deleted, or the lease is lost."""
        while (stored := await self._store.load(key)) is not None:
            try:
                if stored.record.disabled_at is None:
                    stored = await self._run(key, self._delivery(stored))
                await self._publish_disabled(stored)
                return
            except WebhookChangedError:
                continue
            except LeaseLostError:
                return
            except ContractError as error:  # the setting no longer permits its host
                await self._disable(stored, error)
            except Exception as error:  # noqa: BLE001  # one webhook must not end the delivery of all others
                _log.error("delivery of a webhook failed, retrying", webhook=key, exc_info=error)
                await asyncio.sleep(PAUSE)

    async def _run(self, key: str, delivery: WebhookDelivery) -> StoredWebhook:
        self._deliveries[key] = delivery
        try:
            return await delivery.run()
        finally:
            del self._deliveries[key]

    def _delivery(self, stored: StoredWebhook) -> WebhookDelivery:
        settings = self._service.settings
        return WebhookDelivery(
            self._service.bus,
            self._store,
            self._secrets,
            stored,
            Receiver(stored.record.url, settings.webhook_hosts),
            meters=self._service.meters,
            check=self.lease.check,
            disable_after=settings.webhook_disable_after,
        )

    async def _disable(self, stored: StoredWebhook, error: ContractError) -> None:
        changes = {"disabled_at": datetime.now(UTC), "problem": error.problem.message, "published": False}
        await self._store.write(stored.record.model_copy(update=changes), stored)

    async def _publish_disabled(self, stored: StoredWebhook) -> None:
        if stored.record.published:
            return
        await publish_disabled(self._service.bus, stored.record)
        _log.warning("webhook disabled", webhook=stored.record.key, reason=stored.record.problem)
        await self._store.write(stored.record.model_copy(update={"published": True}), stored)
