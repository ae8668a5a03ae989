"""The relay on a real broker delivers messages to their worker, in order, once; it reports those that it can't."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from message_relay.inbox import Inbox
from sandherd.backoff import Backoff
from sandherd.bus.connection import Bus
from sandherd.bus.consumers.consumer import Delivery, dead_headers
from sandherd.contracts.commands import SendMessage
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.events.message import MessageQueued
from sandherd.contracts.requests import RequeueMessageRelay
from sandherd.contracts.states import SandboxState
from sandherd.contracts.subjects import Principal, command_subject
from tests.doubles.stream_admin import stream_admin
from tests.patience import PATIENCE
from tests.polling import eventually

World = Any
QUEUED_TO_END = ["queued", "delivered", "acknowledged"]


async def test_message_reaches_its_worker_with_three_numbered_events(world: World) -> None:
    """queued, delivered and acknowledged are 1, 2 and 3 of the message's own source; nothing is left in INBOX."""
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1") as worker:
        message = await world.send("sbx-1", "do this")
        await world.until_published(message, "acknowledged")
        assert worker.received == ["do this"]
        events = (await world.stored())[message]
        assert [event["type"] for event in events] == [f"message.{state}" for state in QUEUED_TO_END]
        assert [event["sequence"] for event in events] == [1, 2, 3]
        assert {event["source"] for event in events} == {f"/sandherd/message-relay/{message}"}
        assert events[1]["data"]["delivery_ms"] >= 0
        await world.until_inbox_has(0)


async def test_message_is_delivered_while_its_first_event_is_published(world: World, monkeypatch: Any) -> None:
    """An event that is stored late delays no delivery, and no later event of the message overtakes it."""
    received, publish = asyncio.Event(), Bus.publish_event

    async def publish_late(bus: Bus, event: Any, **how: Any) -> Any:
        if event.type == MessageQueued.type:
            await received.wait()
        return await publish(bus, event, **how)

    monkeypatch.setattr(Bus, "publish_event", publish_late)
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1") as worker:
        message = await world.send("sbx-1", "do this")
        await world.until(lambda: worker.received == ["do this"])
        received.set()
        await world.until_published(message, "acknowledged")
        assert [event["type"] for event in (await world.stored())[message]] == [
            f"message.{state}" for state in QUEUED_TO_END
        ]


async def test_messages_are_ordered_within_each_of_many_sandboxes(world: World) -> None:
    """Each of five workers gets its own twenty concurrent messages, in the order sent."""
    sandboxes = [await world.record(f"sbx-{number}") for number in range(5)]
    async with world.relay().running():
        async with asyncio.TaskGroup() as group:
            for sandbox in sandboxes:
                group.create_task(send_in_order(world, sandbox, 20))
        workers = [await world.stack.enter_async_context(world.worker(sandbox)) for sandbox in sandboxes]
        await asyncio.gather(*(world.speak(sandbox) for sandbox in sandboxes))
        await world.until(lambda: all(len(worker.received) == 20 for worker in workers))
    assert all(worker.received == [str(number) for number in range(20)] for worker in workers)


async def test_unknown_and_ended_sandboxes_reject_at_once(world: World) -> None:
    """message.rejected is the first and only event, with the reason; nothing is stored."""
    await world.record("sbx-old", SandboxState.TERMINATED)
    async with world.relay().running():
        unknown, old = await world.send("sbx-none"), await world.send("sbx-old")
        await world.until(lambda: world.published[unknown] == world.published[old] == ["rejected"])
        events = await world.stored()
    assert [event["sequence"] for event in events[unknown]] == [1]
    assert "there is no sandbox sbx-none" in events[unknown][0]["data"]["reason"]
    assert "terminated" in events[old][0]["data"]["reason"]
    assert await world.inbox_size() == 0


async def test_disconnected_worker_gets_its_messages_at_its_next_event(world: World, monkeypatch: Any) -> None:
    """With the slow timer out of reach, the worker's event alone leads to the delivery."""
    slow_timer_out_of_reach(monkeypatch)
    await world.record("sbx-1")
    async with world.relay().running():
        first, second = await world.send("sbx-1", "1"), await world.send("sbx-1", "2")
        await world.until_published(second, "queued")
        async with world.worker("sbx-1") as worker:
            await world.until_after(lambda: world.speak("sbx-1"), lambda: worker.received == ["1", "2"])
            await world.until_published(second, "acknowledged")
    assert world.published[first][-1] == "acknowledged"


async def test_reconnecting_worker_gets_each_message_once_and_ordered(world: World) -> None:
    """The worker disconnects ten times during forty messages."""
    await world.record("sbx-1")
    worker = world.new_worker("sbx-1")
    async with world.relay().running(), asyncio.TaskGroup() as group:
        sending = group.create_task(send_in_order(world, "sbx-1", 40))
        for goal in range(4, 44, 4):
            async with world.worker("sbx-1", worker):
                await world.speak("sbx-1")
                await world.until(lambda goal=goal: len(worker.received) >= goal)
        await sending
    assert worker.received == [str(number) for number in range(40)]


async def test_lost_receipt_is_requested_again(world: World, monkeypatch: Any) -> None:
    """A message whose receipt was lost is delivered again, and injected once."""
    monkeypatch.setattr("message_relay.inbox_delivery.RECEIPT_WITHIN", 0.2)
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1") as worker:
        worker.answers = lambda message: None if len(worker.handed) < 3 else worker.acknowledge(message)
        message = await world.send("sbx-1")
        await world.until_published(message, "acknowledged")
    assert len(worker.handed) == 3
    assert worker.received == ["hello"]


async def test_lost_receipt_delays_no_message(world: World, monkeypatch: Any) -> None:
    """The broker loses receipts whenever a sandbox ends: the next message does not wait for a receipt's time-out."""
    monkeypatch.setattr("message_relay.inbox_delivery.RECEIPT_WITHIN", 2 * PATIENCE)
    slow_timer_out_of_reach(monkeypatch)
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1") as worker:
        worker.answers = lambda message: None if len(worker.handed) == 1 else worker.acknowledge(message)
        first, second = await world.send("sbx-1", "1"), await world.send("sbx-1", "2")
        await world.until_published(second, "acknowledged")
    assert worker.handed == [first, first, second]
    assert worker.received == ["1", "2"]


async def test_refused_message_is_rejected_and_the_next_delivered(world: World) -> None:
    """After the receipt `rejected` message.rejected is the second event, and the next message is delivered."""
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1") as worker:
        worker.answers = worker.refuse
        refused = await world.send("sbx-1", "no")
        await world.until_published(refused, "rejected")
        worker.answers = worker.acknowledge
        taken = await world.send("sbx-1", "yes")
        await world.until_published(taken, "acknowledged")
        event = (await world.stored())[refused][-1]
    assert (event["sequence"], event["data"]["reason"]) == (2, "full")


async def test_invalid_receipt_causes_a_redelivery(world: World) -> None:
    """A reply that is not a receipt for this message acknowledges nothing."""
    await world.record("sbx-1")
    nonsense = [b"", b"{}", b'{"message":"other","outcome":"acknowledged"}', b"\xff"]
    async with world.relay().running(), world.worker("sbx-1") as worker:
        worker.answers = lambda message: nonsense.pop() if nonsense else worker.acknowledge(message)
        message = await world.send("sbx-1")
        await world.until_published(message, "acknowledged")
    assert world.published[message] == QUEUED_TO_END


async def test_message_expires_behind_one_that_may_wait(world: World) -> None:
    """The first message may wait and does; the second expires; the first is delivered when the worker connects."""
    await world.record("sbx-1")
    async with world.relay().running():
        patient = await world.send("sbx-1", "patient", expires=600)
        hasty = await world.send("sbx-1", "hasty", expires=1)
        await world.until_published(hasty, "expired")
        async with world.worker("sbx-1") as worker:
            await world.speak("sbx-1")
            await world.until_published(patient, "acknowledged")
        assert worker.received == ["patient"]
        assert [event["sequence"] for event in (await world.stored())[hasty]] == [1, 2]


async def test_waiting_messages_of_an_ended_sandbox_are_rejected(world: World, monkeypatch: Any) -> None:
    """All waiting messages are rejected with the reason, at the spawner's event."""
    slow_timer_out_of_reach(monkeypatch)
    await world.record("sbx-1")
    async with world.relay().running():
        messages = [await world.send("sbx-1", str(number)) for number in range(3)]
        await world.until(lambda: all(world.published[message] == ["queued"] for message in messages))
        await world.until_after(
            lambda: world.end("sbx-1"), lambda: all(world.published[message][-1] == "rejected" for message in messages)
        )
        await world.until_inbox_has(0)


async def test_repeated_message_id_is_one_message(world: World) -> None:
    """Another command with the same message id is the same message."""
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1") as worker:
        message = await world.send("sbx-1", "once", message="msg-1")
        await world.send("sbx-1", "once", message="msg-1")
        other = await world.send("sbx-1", "other")
        await world.until_published(other, "acknowledged")
        assert worker.received == ["once", "other"]
        assert [event["sequence"] for event in (await world.stored())[message]] == [1, 2, 3]


@pytest.mark.own_broker
async def test_record_with_an_invalid_name_blocks_no_message(world: World) -> None:
    """A name `*`, which the broker stores like any other token, is ignored, and messages of others are delivered."""
    await world.record("sbx-1")
    async with world.herd.bus(Principal.MESSAGE_RELAY) as bus:
        for project, sandbox in (("*", "sbx-1"), ("default", "*"), ("$", "\u202e"), ("default", "s" * 300)):
            await bus.publish(f"sandherd.v1.inbox.{project}.{sandbox}", b"{}", msg_id=project + sandbox)
        assert await Inbox(bus).waiting_sandboxes() == []
    async with world.relay().running(), world.worker("sbx-1") as worker:
        await world.until_published(await world.send("sbx-1", "hello"), "acknowledged")
        assert worker.received == ["hello"]


@pytest.mark.own_broker
async def test_invalid_command_goes_to_dead_and_others_are_delivered(world: World) -> None:
    """Invalid JSON, a wrong field and an unknown field are each stored in DEAD with the reason."""
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1"):
        for payload in (b"not json", b"{}", b'{"specversion":"1.0","data":{"x":1}}'):
            await world.client.publish(
                "sandherd.v1.command.message-relay.send_message.default", payload, msg_id=str(payload)
            )
        message = await world.send("sbx-1")
        await world.until_published(message, "acknowledged")
        assert await world.dead(3) == 3


@pytest.mark.own_broker
async def test_inbox_entry_of_another_version_blocks_no_other(world: World) -> None:
    """The entry goes to DEAD; the next is delivered."""
    await world.record("sbx-1")
    async with world.herd.bus(Principal.MESSAGE_RELAY) as bus:
        await bus.publish("sandherd.v1.inbox.default.sbx-1", b'{"v":9}', msg_id="x")
    async with world.relay().running(), world.worker("sbx-1") as worker:
        message = await world.send("sbx-1")
        await world.until_published(message, "acknowledged")
    assert worker.received == ["hello"]


async def test_standby_accepts_commands_and_takes_over_delivery(world: World) -> None:
    """Each message arrives once through two relays; when the leader stops, the other one delivers the waiting ones."""
    await world.record("sbx-1")
    async with world.worker("sbx-1") as worker, world.relay().running() as second:
        async with world.relay().running():
            for number in range(30):
                await world.send("sbx-1", str(number))
            await world.until(lambda: len(worker.received) == 30)
        last = await world.send("sbx-1", "last")
        await world.until_published(last, "acknowledged")
        assert second.health.problems() == {}
    assert sorted(worker.received[:-1], key=int) == [str(number) for number in range(30)]
    assert len(worker.handed) == len(set(worker.handed))


async def test_idle_inbox_needs_no_consumer_and_no_subscription(world: World) -> None:
    """When everything is delivered, INBOX is empty and has no consumer: only its stream remains."""
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1"):
        await world.until_published(await world.send("sbx-1"), "acknowledged")
        await world.until_inbox_has(0)
        async with world.herd.bus(Principal.MESSAGE_RELAY) as bus:
            assert (await bus.js.stream_info("INBOX")).state.consumer_count == 0
            assert await Inbox(bus).waiting_sandboxes() == []


@pytest.mark.own_broker
async def test_requeued_dead_letter_is_handled_and_leaves_dead(world: World) -> None:
    """A letter that can be handled now is delivered and leaves DEAD; one that can't stays, with the reason."""
    await world.record("sbx-1")
    async with stream_admin(world.herd), world.relay().running(), world.worker("sbx-1") as worker:
        subject = "sandherd.v1.command.message-relay.send_message.default"
        await world.client.publish(subject, b"not json", msg_id="bad")
        await world.until_published(await world.send("sbx-1", "first"), "acknowledged")
        assert await world.dead(1) == 1
        async with world.herd.bus(Principal.MESSAGE_RELAY) as relay:
            command = world.command("sbx-1", "again", message="msg-again")
            delivery = Delivery(subject, command.to_json(), "COMMANDS", 9, 1, datetime.now(UTC))
            headers = dead_headers("message-relay", delivery, Problem(code=Code.INTERNAL, message="was down"))
            dead = f"sandherd.v1.dead.{Principal.MESSAGE_RELAY}.internal"
            good = (await relay.publish(dead, delivery.data, msg_id="dead-1", headers=headers)).seq
            async with world.herd.bus(Principal.OPERATOR) as operator:
                answers = [await operator.ask(RequeueMessageRelay(number=n), "fleet") for n in (good, 1)]
            await world.until_published("msg-again", "acknowledged")
            left = (await relay.js.stream_info("DEAD")).state
    assert [answer.outcome for answer in answers] == ["done", "dead"]
    assert (left.messages, left.first_seq) == (1, 1)
    assert worker.received == ["first", "again"]


async def send_in_order(world: World, sandbox: str, count: int) -> None:
    for number in range(count):
        await world.send(sandbox, str(number))


def slow_timer_out_of_reach(monkeypatch: Any) -> None:
    monkeypatch.setattr("message_relay.dispatcher.BACKOFF", Backoff(base=7200.0, cap=7200.0, jitter=0.5))
    monkeypatch.setattr("message_relay.dispatcher.SCAN_INTERVAL", 3600.0)


async def test_an_invalid_command_is_refused_by_an_event(world: World, herd: Any) -> None:
    """The event has the command's id, its sequence number in COMMANDS and a code; an unknown sandbox's has its own."""
    received_messages: list[dict[str, Any]] = []

    async def receive(msg: Any) -> None:
        received_messages.append(json.loads(msg.data))

    async with world.relay().running(), herd.bus(Principal.CLIENT, project="default") as client:
        await client.client.subscribe("sandherd.v1.event.default.>", cb=receive)
        await client.flush()
        document = {"id": str(uuid4()), "data": {"sandbox": "sbx-1", "message": "msg-1"}}
        stored = await client.js.publish(command_subject(SendMessage.type, "default"), json.dumps(document).encode())
        await eventually(lambda: received_messages)
        unknown = await world.send("sbx-none")
        await eventually(lambda: len(received_messages) == 2)
    refused, rejected = received_messages
    assert (refused["type"], refused["subject"], refused["sandboxid"]) == ("message.refused", "sbx-1", "sbx-1")
    assert refused["data"]["command_id"] == document["id"]
    assert refused["data"]["command_sequence"] == stored.seq
    assert (refused["data"]["command"], refused["data"]["code"]) == (SendMessage.type, "invalid_field")
    assert (rejected["data"]["message_id"], rejected["data"]["code"]) == (unknown, "not_found")
    assert rejected["data"]["command_id"]
