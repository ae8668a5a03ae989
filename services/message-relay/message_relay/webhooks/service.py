"""Composes the webhooks' part of the relay. Every replica handles requests, and delivers partitions by their leases."""

import asyncio
from typing import Any

from message_relay.webhooks.event_reader import EventReader
from message_relay.webhooks.partition import PARTITIONS, WebhookPartition, partition_of
from message_relay.webhooks.request_handlers import ANSWERED, WebhookRequestHandler
from message_relay.webhooks.secrets import WebhookSecretClient
from message_relay.webhooks.store import WebhookStore
from sandherd.concurrency import run_until_first
from sandherd.contracts.requests import Request
from sandherd.service.encoded_answer import AnyAnswer
from sandherd.service.requests import Answerer, IncomingRequest
from sandherd.service.service import Service


class WebhookService:
    """Delivers webhooks, and replies to requests about them."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._ready = asyncio.Event()
        self._partitions: list[WebhookPartition] = []
        self._handlers: dict[type[Request[Any]], Answerer] = {}
        for request, at_once in ANSWERED.items():
            service.answer(request, self._answerer(request), at_once=at_once)
        service.background("webhooks", self.run)

    async def run(self) -> None:
        """Deliver as long as the service runs."""
        service = self._service
        store, secrets = WebhookStore(service.bus), WebhookSecretClient(service.bus)
        self._partitions = [WebhookPartition(service, number, store, secrets) for number in range(PARTITIONS)]
        for part in self._partitions:
            self._add_to_health_and_metrics(part)
        handler = WebhookRequestHandler(
            store, secrets, EventReader(service.bus), hosts=service.settings.webhook_hosts, wake=self._wake
        )
        self._handlers = handler.handlers
        self._ready.set()
        await run_until_first(*(part.run() for part in self._partitions))

    def _add_to_health_and_metrics(self, part: WebhookPartition) -> None:
        """Add a partition's lease and lag to the service's health and metrics."""
        lease, meters = part.lease, self._service.meters
        self._service.health.add(lease.key, lease.problem)
        meters.watch("sandherd_lease_held", lambda: lease.held, lease=lease.key)
        meters.watch("sandherd_webhook_oldest_seconds", part.oldest_seconds, partition=str(part.number))

    def _wake(self, key: str) -> None:
        self._partitions[partition_of(key)].wake()

    def _answerer(self, request: type[Request[Any]]) -> Answerer:
        """A handler of a kind of request that waits until the service is connected."""

        async def answer(incoming: IncomingRequest[Any]) -> AnyAnswer:
            await self._ready.wait()
            return await self._handlers[request](incoming)

        return answer
