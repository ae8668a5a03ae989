"""The headers in the AsyncAPI documents are those of real messages."""

import asyncio
from datetime import UTC, datetime
from functools import cache

from nats.aio.msg import Msg

from sandherd.bus.connection import Bus
from sandherd.bus.consumers.dead_letters import dead_headers
from sandherd.bus.consumers.outcomes import Delivery
from sandherd.bus.consumers.pull import Puller
from sandherd.contracts import asyncapi
from sandherd.contracts.envelope import wrap
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.events.conversation import AgentMessage
from sandherd.contracts.headers import MESSAGE_ID, SEQUENCE_HEADER
from sandherd.contracts.requests import ListSubscriptions
from sandherd.contracts.subjects import OUTPUT, Principal, event_subject, request_subject
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE

PLACE = event_subject("p1", "sbx-1", "agent.message")


@cache
def documented(message: str) -> frozenset[str]:
    """The headers of a message, which must be the same in every document that has it."""
    documents = [asyncapi.document(), *map(asyncapi.role_document, asyncapi.ROLES)]
    messages = [one["components"]["messages"] for one in documents]
    (found,) = {frozenset(one[message]["headers"]["properties"]) for one in messages if message in one}
    return found


async def live(bus: Bus, worker: Bus, subject: str, document: bytes) -> Msg:
    """A stored message of this subject, as a plain subscription receives it."""
    subscription = await bus.client.subscribe(subject)
    await bus.flush()
    await worker.publish(subject, document, msg_id="one")
    found: Msg = await subscription.next_msg(PATIENCE)
    return found


async def test_live_event_has_the_documented_headers(herd: Broker) -> None:
    """An event has exactly the documented headers; `Nats-Sequence` has its sequence number in the stream."""
    data = AgentMessage(content="hello", content_length=5)
    source, time = "/sandherd/sandbox/sbx-1", datetime(2026, 11, 20, 12, tzinfo=UTC)
    event = wrap(
        data, data.type, source=source, sequence=1, project="p1", subject="sbx-1", time=time, sandboxid="sbx-1"
    )
    async with (
        herd.bus(Principal.SUBSCRIBER, project="p1") as bus,
        herd.bus(Principal.WORKER, project="p1", sandbox="sbx-1") as worker,
    ):
        message = await live(bus, worker, PLACE, event.to_json())
    assert {*(message.headers or {})} == documented("agent.message")
    assert SEQUENCE_HEADER in documented("agent.message")


async def test_live_output_has_the_documented_headers(herd: Broker) -> None:
    """Output has exactly the documented headers; a worker publishes it without a message id."""
    subject = OUTPUT.fill(project="p1", sandbox="sbx-1")
    async with (
        herd.bus(Principal.CLIENT, project="p1") as bus,
        herd.bus(Principal.WORKER, project="p1", sandbox="sbx-1") as worker,
    ):
        message = await live(bus, worker, subject, b"text")
    assert {*(message.headers or {})} - {MESSAGE_ID} == documented("output")


async def test_pulled_event_has_no_sequence_header(herd: Broker) -> None:
    """The reply subject of a pulled event has its place in the stream; only live events have the header."""
    async with (
        herd.bus(Principal.EVENT_INGEST) as bus,
        herd.bus(Principal.WORKER, project="p1", sandbox="sbx-1") as worker,
    ):
        await worker.publish(PLACE, b"{}", msg_id="one")
        puller = Puller(bus, "EVENTS", "event-ingest", 1)
        await puller.bind()
        async with asyncio.timeout(PATIENCE):
            (message,) = await puller.next_batch(1)
        await message.ack_sync(timeout=PATIENCE)
        await puller.unbind()
    assert {*(message.headers or {})} == {MESSAGE_ID}


async def test_request_has_the_documented_headers(herd: Broker) -> None:
    """A request has the client's time limit as a header."""
    async with herd.bus(Principal.EVENT_INGEST) as service, herd.bus(Principal.CLIENT, project="p1") as bus:
        subscription = await service.client.subscribe(request_subject(ListSubscriptions.type, "p1"))
        await service.flush()
        asking = asyncio.create_task(bus.ask(ListSubscriptions(), "p1"))
        message = await subscription.next_msg(PATIENCE)
        await message.respond(b'{"ok": {"subscriptions": [], "most": 8}}')
        await asking
    added = {"Nats-Request-Info"}  # set by the broker, for services in another account
    assert {*(message.headers or {})} - added == documented("event-ingest.subscriptions.request")


def test_dead_letter_has_the_documented_headers() -> None:
    """A dead letter has the documented headers of an excerpt, and its message id."""
    delivery = Delivery(
        subject=PLACE, data=b"{}", stream="EVENTS", stream_sequence=1, deliveries=1, at=datetime.now(UTC)
    )
    found = dead_headers("event-ingest", delivery, Problem(code=Code.INTERNAL, message="broken"), excerpt=True)
    assert {MESSAGE_ID, *found} == documented("dead")
