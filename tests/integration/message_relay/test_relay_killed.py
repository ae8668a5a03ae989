"""A relay that is killed at any point loses nothing, publishes nothing twice, and leaves no gap in its sequence."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from sandherd.bus.consumers.consumer import Delivery
from sandherd.contracts.commands import AnswerApproval, SendMessage
from sandherd.contracts.envelope import wrap
from sandherd.contracts.names import new_name
from sandherd.contracts.subjects import Principal, command_subject, event_subject
from tests.integration.message_relay.dying_relay import Killed, Relay

World = Any
KEY = ("default", "sbx-1")
STEPS = ("claim", "keep", "say queued", "hand over", "say delivered", "say acknowledged", "remove")
ANSWERED = (
    *("claim", "decide", "say granted", "note that", "keep", "say queued"),
    *("knock", "note that it is handed over", "hand over"),
    *("say delivered", "say acknowledged", "note that it was used", "remove"),
)
LAPSED = ("write", "say requested", "decide", "say expired", "note that")
DELIVERED = ["message.queued", "message.delivered", "message.acknowledged"]


async def live_once(world: World, command: Delivery, acts: int | None) -> None:
    """Run a relay that handles the command and delivers what waits; it is killed before act number `acts`."""
    async with world.herd.bus(Principal.MESSAGE_RELAY) as bus:
        relay = Relay(bus, acts)
        try:
            await relay.taking.handle(command)
            await relay.deliver(KEY)
        except Killed:
            return


async def ask_once(world: World, requested: Delivery, acts: int | None) -> None:
    """Run a relay that receives an approval request, and checks for expired approvals."""
    async with world.herd.bus(Principal.MESSAGE_RELAY) as bus:
        relay = Relay(bus, acts)
        try:
            await relay.answering.handle(requested)
            await relay.lapsing.expire_due()
        except Killed:
            return


def command_of(message: str, deliveries: int, at: datetime) -> Delivery:
    return delivery_of(SendMessage(message=message, sandbox="sbx-1", content="hello"), deliveries, at)


def delivery_of(data: SendMessage | AnswerApproval, deliveries: int, at: datetime) -> Delivery:
    envelope = wrap(
        data, data.type, source="/sandherd/client/x", sequence=1, project="default", subject="sbx-1", time=at
    )
    return Delivery(command_subject(data.type, "default"), envelope.to_json(), "COMMANDS", 1, deliveries, at)


async def approval_request_of(world: World, **more: Any) -> Delivery:
    """The approval request that a worker has just sent, as it is delivered."""
    event = await world.ask("sbx-1", "a1", **more)
    subject = event_subject("default", "sbx-1", event.type)
    return Delivery(subject, event.to_json(), "EVENTS", 1, 1, event.time)


@pytest.mark.parametrize("killed_at", range(len(STEPS)), ids=STEPS)
async def test_relay_killed_at_any_act_publishes_each_event_once(world: World, killed_at: int) -> None:
    """Killed before each act and restarted, it publishes queued, delivered and acknowledged; the agent gets it once."""
    await world.record("sbx-1")
    message, at = new_name("msg"), datetime.now(UTC)
    async with world.worker("sbx-1") as worker:
        await live_once(world, command_of(message, 1, at), killed_at)
        await live_once(world, command_of(message, 2, at), None)
        assert worker.received == ["hello"]
    events = (await world.stored())[message]
    assert [(event["sequence"], event["type"]) for event in events] == list(enumerate(DELIVERED, 1))
    assert await world.inbox_size() == 0


@pytest.mark.parametrize("killed_at", range(len(STEPS)), ids=STEPS)
async def test_message_to_a_sandbox_that_ends_meanwhile_has_one_end(world: World, killed_at: int) -> None:
    """A message that was published as delivered stays so, else it is rejected: never both, and no number is missing.

    One that was not claimed yet is rejected at once.
    """
    await world.record("sbx-1")
    message, at = new_name("msg"), datetime.now(UTC)
    async with world.worker("sbx-1"):
        await live_once(world, command_of(message, 1, at), killed_at)
    await world.end("sbx-1")
    await live_once(world, command_of(message, 2, at), None)
    types = [event["type"] for event in (await world.stored())[message]]
    rejected = ["message.queued", "message.rejected"] if killed_at > STEPS.index("claim") else ["message.rejected"]
    assert types == (DELIVERED if killed_at > STEPS.index("say delivered") else rejected)
    assert await world.inbox_size() == 0


@pytest.mark.parametrize("killed_at", range(len(ANSWERED)), ids=ANSWERED)
async def test_decision_survives_a_kill_before_any_act(world: World, killed_at: int) -> None:
    """Killed before each act, the relay decides the approval once and delivers it once, with every event."""
    await world.record("sbx-1")
    await ask_once(world, await approval_request_of(world), None)
    answer, at = AnswerApproval(message="msg-1", sandbox="sbx-1", approval_id="a1", granted=True), datetime.now(UTC)
    async with world.worker("sbx-1") as worker:
        await live_once(world, delivery_of(answer, 1, at), killed_at)
        await live_once(world, delivery_of(answer, 2, at), None)
        assert len(worker.received) == 1
    assert [event["type"] for event in (await world.stored())["msg-1"]] == DELIVERED
    approval = (await world.stored("approval_id"))["a1"]
    assert [event["type"] for event in approval] == ["approval.requested", "approval.granted"]
    assert await world.inbox_size() == 0


@pytest.mark.parametrize("killed_at", range(len(LAPSED)), ids=LAPSED)
async def test_time_out_survives_a_kill_before_any_act(world: World, killed_at: int) -> None:
    """Killed before each act, the relay publishes requested and expired once each."""
    await world.record("sbx-1")
    requested = await approval_request_of(world, timeout_seconds=0.0)
    await ask_once(world, requested, killed_at)
    await ask_once(world, requested, None)
    approval = (await world.stored("approval_id"))["a1"]
    assert [event["type"] for event in approval] == ["approval.requested", "approval.expired"]


@asynccontextmanager
async def relay_process(world: World) -> AsyncIterator[asyncio.subprocess.Process]:
    settings = world.herd.settings(Principal.MESSAGE_RELAY)
    environment = os.environ | {"NATS_URL": settings.nats_url, "SANDHERD_CREDENTIALS": str(settings.credentials)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "message_relay.main", env=environment, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.faults
async def test_relay_killed_during_a_stream_of_messages_loses_none(world: World) -> None:
    """Killed at three points of 120 messages to three sandboxes, it delivers each once, and no event is missing."""
    sandboxes = [await world.record(f"sbx-{number}") for number in range(3)]
    workers = [await world.stack.enter_async_context(world.worker(sandbox)) for sandbox in sandboxes]
    messages: list[str] = []

    def count_received() -> int:
        return sum(len(worker.received) for worker in workers)

    for goal in (7, 31):
        async with relay_process(world) as process:
            messages += [await world.send(sandbox) for sandbox in sandboxes for _ in range(10)]
            await world.until(lambda goal=goal: count_received() >= goal)
            process.send_signal(signal.SIGKILL)
    async with relay_process(world):
        messages += [await world.send(sandbox) for sandbox in sandboxes for _ in range(10)]
        await world.until(lambda: all("acknowledged" in world.published[message] for message in messages))
    events = await world.stored()
    assert count_received() == len(messages) == 90
    for message in messages:
        assert [event["type"] for event in events[message]] == DELIVERED


@pytest.mark.own_broker
@pytest.mark.faults
async def test_broker_killed_during_delivery_loses_no_message(world: World) -> None:
    """After a SIGKILL of nats-server with pending messages each message arrives once."""
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1") as worker:
        messages = [await world.send("sbx-1", str(number)) for number in range(20)]
        await world.until(lambda: len(worker.received) >= 5)
        await world.restart_broker()
        messages += [await world.send("sbx-1", str(number)) for number in range(20, 30)]
        await world.until(lambda: len(worker.received) == 30)
        await world.until(lambda: "acknowledged" in world.published[messages[-1]])
        events = await world.stored()
    assert sorted(worker.received, key=int) == [str(number) for number in range(30)]
    assert all([event["type"] for event in events[message]] == DELIVERED for message in messages)
