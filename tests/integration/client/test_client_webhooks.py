"""Outgoing webhooks from a real subscription to a real HTTP server: failures, a kill, and undelivered events."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sandherd.backoff import Backoff
from sandherd.client import Herd, HerdError
from sandherd.client.subscriptions import ReceivedEvent
from sandherd.client.webhooks import delivery
from sandherd.client.webhooks.addresses import checked_url
from sandherd.client.webhooks.delivery import DeliveryLimits, WebhookDelivery
from sandherd.client.webhooks.sender import Sender
from sandherd.concurrency import cancel_and_wait
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from sandherd.webhook_signatures import new_secret, signature
from tests.integration.client.test_client_subscriptions import as_subscriber, event_of, ingest
from tests.polling import eventually

__all__ = ["ingest"]
SECRET = new_secret()
OTHER = "sbx-two"


class Receiver:
    """An endpoint for webhooks: it checks each signature, and responds with the next of `statuses`, then with 200."""

    def __init__(self) -> None:
        self.accepted: list[tuple[str, int]] = []
        self.ids: list[str] = []
        self.statuses: list[int] = []
        self.url = ""

    async def receive(self, request: web.Request) -> web.Response:
        body, headers = await request.read(), request.headers
        expected = signature(SECRET, headers["webhook-id"], headers["webhook-timestamp"], body)
        assert expected in headers["webhook-signature"].split()
        event = json.loads(body)
        assert event["id"] == headers["webhook-id"]
        self.ids.append(event["id"])
        status = self.statuses.pop(0) if self.statuses else 200
        if status == 200:
            self.accepted.append((event["subject"], event["sequence"]))
        return web.Response(status=status, headers={"Location": "http://127.0.0.1:9/"} if status == 302 else {})

    def of(self, sandbox: str) -> list[int]:
        """The numbers of a sandbox's accepted events, in order."""
        return [number for subject, number in self.accepted if subject == sandbox]


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.add_routes([web.post("/events", receiver.receive)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/events?a=b"
    try:
        yield receiver
    finally:
        await runner.cleanup()


def deliver(herd: Herd, url: str, dead: Path, **changes: Any) -> "asyncio.Task[None]":
    sender = Sender(checked_url(url, private=True), private=changes.pop("private", True))
    return asyncio.create_task(WebhookDelivery(herd, "hook", sender, lambda: (SECRET,), dead, **changes).run())


async def test_events_are_delivered_in_order_over_failures_and_a_kill(
    ingest: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each event comes at least once with one id, in order for its sandbox; an undeliverable one is a dead letter."""
    monkeypatch.setattr(delivery, "RETRY_BACKOFF", Backoff(base=0.01, cap=0.01))
    dead = tmp_path / "dead"
    async with receiving() as receiver, ingest.bus(Principal.WORKER, sandbox="sbx-one") as worker:
        async with Herd.connect(as_subscriber(ingest)) as herd:
            await herd.subscribe("hook")
            await _publish(ingest, worker)
            receiver.statuses = [500, 302, 429, 404]
            running = deliver(herd, receiver.url, dead)
            await eventually(lambda: len(receiver.accepted) == 6, "all are accepted")
            assert (receiver.of("sbx-one"), receiver.of(OTHER)) == ([1, 2, 3], [1, 2, 3])
            assert (len(receiver.ids), len(set(receiver.ids))) == (10, 6)
            await _killed_before_acknowledging(running, monkeypatch, receiver, worker)
        async with Herd.connect(as_subscriber(ingest)) as herd:
            running = deliver(herd, receiver.url, dead)
            await worker.publish_event(event_of(5))
            await eventually(lambda: receiver.of("sbx-one")[-1] == 5, "it continues")
            assert receiver.of("sbx-one")[-3:] == [4, 4, 5]
            await eventually(lambda: _is_acknowledged(herd), "all are acknowledged")
            await cancel_and_wait([running])
            await _given_up(herd, worker, receiver, dead)
            await _refused_address(herd, worker, receiver, dead)


async def _is_acknowledged(herd: Herd) -> bool:
    return (await herd.subscriptions()).subscriptions[0].unacknowledged == 0


async def _publish(ingest: Broker, worker: Any) -> None:
    """Publish three events of each of two sandboxes."""
    async with ingest.bus(Principal.WORKER, sandbox=OTHER) as other:
        for number in (1, 2, 3):
            await worker.publish_event(event_of(number))
            await other.publish_event(event_of(number, sandbox=OTHER))


async def _given_up(herd: Herd, worker: Any, receiver: Receiver, dead: Path) -> None:
    """Check that events beyond the maximum age are in the file, and that 410 ends the delivery."""
    receiver.statuses = [500] * 1000
    running = deliver(herd, receiver.url, dead, limits=DeliveryLimits(age=timedelta(0)))
    await worker.publish_event(event_of(6))
    await eventually(lambda: dead.exists() and dead.read_text().endswith("\n"), "it is given up")
    assert json.loads(dead.read_text())["event"]["sequence"] == 6
    receiver.statuses = [410]
    await worker.publish_event(event_of(7))
    with pytest.raises(HerdError, match="410"):
        await running


async def _killed_before_acknowledging(
    running: "asyncio.Task[None]", monkeypatch: pytest.MonkeyPatch, receiver: Receiver, worker: Any
) -> None:
    """Check a program that ends after the receiver accepted event 4, and before its acknowledgement."""
    killed, ack = asyncio.Event(), ReceivedEvent.ack

    async def kill(received: ReceivedEvent) -> None:
        if received.event.sequence != 4:  # accepted before, and acknowledged only now
            await ack(received)
            return
        killed.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(ReceivedEvent, "ack", kill)
        await worker.publish_event(event_of(4))
        await killed.wait()
        await cancel_and_wait([running])
    assert receiver.of("sbx-one")[-1] == 4


async def _refused_address(herd: Herd, worker: Any, receiver: Receiver, dead: Path) -> None:
    """Check that without permission for private addresses nothing is sent to the loopback, with any URL."""
    lines: list[str] = []
    receiver.ids.clear()
    running = deliver(herd, receiver.url, dead, private=False, report=lines.append)
    await eventually(lambda: any("not a public address" in line for line in lines), "it is refused")
    await cancel_and_wait([running])
    assert receiver.ids == []
