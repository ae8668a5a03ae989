"""Replies that another project's client directs at followers are not read as events, and no event is missed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from nats.aio.msg import Msg

from sandherd.bus.connection import Bus
from sandherd.client import Herd
from sandherd.contracts.events.conversation import AgentMessage
from sandherd.contracts.requests import ListEvents, ListLiveTasks
from sandherd.contracts.subjects import OUTPUT, Principal, command_subject, event_subject, request_subject
from sandherd.stack.broker import Broker
from tests.integration.client.test_client_follow import QUICK, in_order, received
from tests.patience import PATIENCE
from tests.polling import eventually

OTHER, MANY = "alpha", 500
TASK, SANDBOX = "task-one", "sbx-one"
EVENT: Final = event_subject("default", SANDBOX, AgentMessage.type)
TERMINAL: Final = OUTPUT.fill(project="default", sandbox=SANDBOX)
PUBLISHED: Final = (
    (command_subject("spawner.submit_task", OTHER), b"{}"),
    (request_subject(ListLiveTasks.type, OTHER), b"{}"),
    (request_subject(ListEvents.type, OTHER), b'{"limit": 500}'),
)
"""An acknowledgement of the broker, and replies of two services."""
HEADERS: Final = {"Nats-Sequence": "1", "Nats-Stream": "EVENTS", "Status": "404"}
Neighbours = Any


async def direct(attacker: Bus, count: int) -> None:
    """Direct `count` acknowledgements and replies each at the default project's event and output subjects."""
    for number in range(count):
        subject, document = PUBLISHED[number % len(PUBLISHED)]
        for reply in (EVENT, TERMINAL):
            await attacker.client.publish(subject, document, reply=reply, headers=HEADERS)
    await attacker.flush(timeout=PATIENCE)


@asynccontextmanager
async def subscribed(client: Herd, subject: str, found: list[tuple[str, bytes]]) -> AsyncIterator[list[Msg]]:
    """Append a client subscription's messages to `found`; yields those of a plain subscription to the same subject."""
    plain: list[Msg] = []

    async def on_event(subject: str, document: bytes) -> None:
        found.append((subject, document))

    async def on_message(message: Msg) -> None:
        plain.append(message)

    await client.connection.bus.client.subscribe(subject, cb=on_message)
    await client.connection.listen(subject, on_event)
    await client.connection.flush()
    yield plain


async def test_misdirected_replies_are_ignored(herd: Broker, client: Herd, neighbours: Neighbours) -> None:
    """Replies that the broker delivers on events' and output subjects are not passed on, published events are."""
    events: list[tuple[str, bytes]] = []
    output: list[tuple[str, bytes]] = []
    async with (
        herd.bus(Principal.CLIENT, project=OTHER) as attacker,
        subscribed(client, "sandherd.v1.event.default.>", events) as raw_events,
        subscribed(client, TERMINAL, output) as raw_output,
    ):
        await direct(attacker, 9)
        await eventually(lambda: len(raw_events) >= 9 and len(raw_output) >= 9, "the replies, delivered")
        assert not [
            message
            for message in raw_events + raw_output
            if message.reply or "Nats-Sequence" in (message.headers or {})
        ]
        event = await neighbours.chat("hello")
        worker = neighbours.buses[Principal.WORKER]
        await worker.publish(TERMINAL, b"hello\n", msg_id="one", headers={"Status": "404"})
        await eventually(lambda: events and output, "what was published here")
        await client.connection.flush()
    assert events == [(EVENT, event.to_json())]
    assert output == [(TERMINAL, b"hello\n")]


async def test_misdirected_events_are_neither_shown_nor_counted(
    herd: Broker, client: Herd, neighbours: Neighbours
) -> None:
    """While hundreds arrive, a follower shows only the task's events, without a gap, and reads no history."""
    async with (
        herd.bus(Principal.CLIENT, project=OTHER) as attacker,
        client.follow(task=TASK, fresh=True, limits=QUICK) as following,
    ):
        flood = asyncio.create_task(direct(attacker, MANY))
        await neighbours.begin()
        for number in range(50):
            await neighbours.chat(f"line {number}")
        await flood
        await neighbours.complete()
        lines = await received(following)
    assert in_order(lines)
    assert len(lines) == 5 + 50 + 2
    assert following.is_complete
    assert not [request for request in neighbours.requested if isinstance(request, ListEvents) and request.task]
