"""The relay on a real broker: what is sent reaches the worker, in order, once; and what can't is said."""

import asyncio
from datetime import UTC, datetime
from typing import Any

from message_relay.inbox import Inbox
from sandherd.bus.consuming import Delivery, dead_headers
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.requests import RequeueMessageRelay
from sandherd.contracts.states import SandboxState
from sandherd.contracts.subjects import Principal
from tests.doubles.stream_admin import stream_admin

World = Any
QUEUED_TO_END = ["queued", "delivered", "acknowledged"]


async def test_a_message_reaches_its_worker_and_its_three_events_are_numbered(world: World) -> None:
    """queued, delivered, acknowledged: sequences 1, 2, 3 of the message's own source; nothing is left in INBOX."""
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1") as worker:
        message = await world.send("sbx-1", "do this")
        await world.until_said(message, "acknowledged")
        assert worker.heard == ["do this"]
        events = (await world.stored())[message]
        assert [event["type"] for event in events] == [f"message.{state}" for state in QUEUED_TO_END]
        assert [event["sequence"] for event in events] == [1, 2, 3]
        assert {event["source"] for event in events} == {f"/sandherd/message-relay/{message}"}
        assert events[1]["data"]["delivery_ms"] >= 0
        await world.until_inbox_has(0)


async def test_messages_keep_their_order_within_each_of_many_sandboxes(world: World) -> None:
    """Twenty messages to each of five sandboxes, all sent at once: each worker hears its own in the order sent."""
    sandboxes = [await world.record(f"sbx-{number}") for number in range(5)]
    async with world.relay().running():
        async with asyncio.TaskGroup() as group:
            for sandbox in sandboxes:
                group.create_task(send_in_order(world, sandbox, 20))
        workers = [await world.stack.enter_async_context(world.worker(sandbox)) for sandbox in sandboxes]
        await asyncio.gather(*(world.speak(sandbox) for sandbox in sandboxes))
        await world.until(lambda: all(len(worker.heard) == 20 for worker in workers))
    assert all(worker.heard == [str(number) for number in range(20)] for worker in workers)


async def test_an_unknown_sandbox_and_an_ended_one_reject_at_once(world: World) -> None:
    """message.rejected is the first and only event, with the reason; nothing is kept."""
    await world.record("sbx-old", SandboxState.TERMINATED)
    async with world.relay().running():
        unknown, old = await world.send("sbx-none"), await world.send("sbx-old")
        await world.until(lambda: world.said[unknown] == world.said[old] == ["rejected"])
        events = await world.stored()
    assert [event["sequence"] for event in events[unknown]] == [1]
    assert "there is no sandbox sbx-none" in events[unknown][0]["data"]["reason"]
    assert "terminated" in events[old][0]["data"]["reason"]
    assert await world.inbox_size() == 0


async def test_a_worker_that_is_away_gets_its_messages_at_its_next_event(world: World, monkeypatch: Any) -> None:
    """With the slow timer out of reach, the event alone brings the messages."""
    slow_timer_out_of_reach(monkeypatch)
    await world.record("sbx-1")
    async with world.relay().running():
        first, second = await world.send("sbx-1", "1"), await world.send("sbx-1", "2")
        await world.until_said(second, "queued")
        async with world.worker("sbx-1") as worker:
            await world.until_after(lambda: world.speak("sbx-1"), lambda: worker.heard == ["1", "2"])
            await world.until_said(second, "acknowledged")
    assert world.said[first][-1] == "acknowledged"


async def test_a_worker_that_comes_and_goes_hears_each_message_once_and_in_order(world: World) -> None:
    """Ten comings and goings in the middle of forty messages."""
    await world.record("sbx-1")
    worker = world.new_worker("sbx-1")
    async with world.relay().running(), asyncio.TaskGroup() as group:
        sending = group.create_task(send_in_order(world, "sbx-1", 40))
        for goal in range(4, 44, 4):
            async with world.worker("sbx-1", worker):
                await world.speak("sbx-1")
                await world.until(lambda goal=goal: len(worker.heard) >= goal)
        await sending
    assert worker.heard == [str(number) for number in range(40)]


async def test_a_receipt_that_was_lost_is_asked_for_again(world: World, monkeypatch: Any) -> None:
    """The worker got the message and its answer did not arrive: it is handed again, and heard once."""
    monkeypatch.setattr("message_relay.pumping.RECEIPT_WITHIN", 0.2)
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1") as worker:
        worker.answers = lambda message: None if len(worker.handed) < 3 else worker.acknowledge(message)
        message = await world.send("sbx-1")
        await world.until_said(message, "acknowledged")
    assert len(worker.handed) == 3
    assert worker.heard == ["hello"]


async def test_what_a_worker_refuses_is_rejected_with_its_reason_and_the_next_goes_on(world: World) -> None:
    """Receipt rejected: message.rejected is the second event, and the one behind is delivered."""
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1") as worker:
        worker.answers = worker.refuse
        refused = await world.send("sbx-1", "no")
        await world.until_said(refused, "rejected")
        worker.answers = worker.acknowledge
        taken = await world.send("sbx-1", "yes")
        await world.until_said(taken, "acknowledged")
        event = (await world.stored())[refused][-1]
    assert (event["sequence"], event["data"]["reason"]) == (2, "full")


async def test_a_worker_that_answers_nonsense_or_for_another_message_gets_it_again(world: World) -> None:
    """What is no receipt for this message acknowledges nothing."""
    await world.record("sbx-1")
    nonsense = [b"", b"{}", b'{"message":"other","outcome":"acknowledged"}', b"\xff"]
    async with world.relay().running(), world.worker("sbx-1") as worker:
        worker.answers = lambda message: nonsense.pop() if nonsense else worker.acknowledge(message)
        message = await world.send("sbx-1")
        await world.until_said(message, "acknowledged")
    assert world.said[message] == QUEUED_TO_END


async def test_messages_that_wait_too_long_expire_also_behind_one_that_may_wait(world: World) -> None:
    """The first may wait and does; the second expires meanwhile; the first is delivered when the worker comes."""
    await world.record("sbx-1")
    async with world.relay().running():
        patient = await world.send("sbx-1", "patient", expires=600)
        hasty = await world.send("sbx-1", "hasty", expires=1)
        await world.until_said(hasty, "expired")
        async with world.worker("sbx-1") as worker:
            await world.speak("sbx-1")
            await world.until_said(patient, "acknowledged")
        assert worker.heard == ["patient"]
        assert [event["sequence"] for event in (await world.stored())[hasty]] == [1, 2]


async def test_what_waits_for_a_sandbox_that_ends_is_rejected(world: World, monkeypatch: Any) -> None:
    """All that wait, at the spawner's event, with the reason."""
    slow_timer_out_of_reach(monkeypatch)
    await world.record("sbx-1")
    async with world.relay().running():
        messages = [await world.send("sbx-1", str(number)) for number in range(3)]
        await world.until(lambda: all(world.said[message] == ["queued"] for message in messages))
        await world.until_after(
            lambda: world.end("sbx-1"), lambda: all(world.said[message][-1] == "rejected" for message in messages)
        )
        await world.until_inbox_has(0)


async def test_the_same_message_sent_twice_is_one_message(world: World) -> None:
    """Another command with the same message id, as a client that was not sure sends it."""
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1") as worker:
        message = await world.send("sbx-1", "once", message="msg-1")
        await world.send("sbx-1", "once", message="msg-1")
        other = await world.send("sbx-1", "other")
        await world.until_said(other, "acknowledged")
        assert worker.heard == ["once", "other"]
        assert [event["sequence"] for event in (await world.stored())[message]] == [1, 2, 3]


async def test_what_is_stored_under_names_that_nobody_has_stops_nothing(world: World) -> None:
    """As `*`, which the broker stores like any other token: it is ignored, and messages of others are delivered."""
    await world.record("sbx-1")
    async with world.herd.bus(Principal.MESSAGE_RELAY) as bus:
        for project, sandbox in (("*", "sbx-1"), ("default", "*"), ("$", "\u202e"), ("default", "s" * 300)):
            await bus.publish(f"sandherd.v1.inbox.{project}.{sandbox}", b"{}", msg_id=project + sandbox)
        assert await Inbox(bus).waiting_sandboxes() == []
    async with world.relay().running(), world.worker("sbx-1") as worker:
        await world.until_said(await world.send("sbx-1", "hello"), "acknowledged")
        assert worker.heard == ["hello"]


async def test_a_command_that_breaks_the_contract_goes_to_dead_and_those_beside_it_arrive(world: World) -> None:
    """Wrong JSON, a wrong field, an unknown field: each is kept in DEAD with its reason."""
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1"):
        for payload in (b"not json", b"{}", b'{"specversion":"1.0","data":{"x":1}}'):
            await world.client.publish(
                "sandherd.v1.command.message-relay.send_message.default", payload, msg_id=str(payload)
            )
        message = await world.send("sbx-1")
        await world.until_said(message, "acknowledged")
        assert await world.dead(3) == 3


async def test_an_inbox_entry_that_another_version_wrote_does_not_hold_up_those_behind(world: World) -> None:
    """It goes to DEAD; the next is delivered."""
    await world.record("sbx-1")
    async with world.herd.bus(Principal.MESSAGE_RELAY) as bus:
        await bus.publish("sandherd.v1.inbox.default.sbx-1", b'{"v":9}', msg_id="x")
    async with world.relay().running(), world.worker("sbx-1") as worker:
        message = await world.send("sbx-1")
        await world.until_said(message, "acknowledged")
    assert worker.heard == ["hello"]


async def test_a_standby_takes_commands_and_the_holder_delivers_and_the_standby_takes_over(world: World) -> None:
    """With two relays, every message arrives once; when the holder leaves, the other delivers what waits."""
    await world.record("sbx-1")
    async with world.worker("sbx-1") as worker, world.relay().running() as second:
        async with world.relay().running():
            for number in range(30):
                await world.send("sbx-1", str(number))
            await world.until(lambda: len(worker.heard) == 30)
        last = await world.send("sbx-1", "last")
        await world.until_said(last, "acknowledged")
        assert second.health.problems() == {}
    assert sorted(worker.heard[:-1], key=int) == [str(number) for number in range(30)]
    assert len(worker.handed) == len(set(worker.handed))


async def test_an_idle_inbox_costs_the_broker_no_consumer_and_no_subscription(world: World) -> None:
    """After everything was delivered, INBOX is empty and has no consumer: only its stream is left."""
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1"):
        await world.until_said(await world.send("sbx-1"), "acknowledged")
        await world.until_inbox_has(0)
        async with world.herd.bus(Principal.MESSAGE_RELAY) as bus:
            assert (await bus.js.stream_info("INBOX")).state.consumer_count == 0
            assert await Inbox(bus).waiting_sandboxes() == []


async def test_a_dead_letter_that_is_put_back_is_handled_and_leaves_dead(world: World) -> None:
    """One that can be handled now arrives and is gone from DEAD; one that can't stays, and says why."""
    await world.record("sbx-1")
    async with stream_admin(world.herd), world.relay().running(), world.worker("sbx-1") as worker:
        subject = "sandherd.v1.command.message-relay.send_message.default"
        await world.client.publish(subject, b"not json", msg_id="bad")
        await world.until_said(await world.send("sbx-1", "first"), "acknowledged")
        assert await world.dead(1) == 1
        async with world.herd.bus(Principal.MESSAGE_RELAY) as relay:
            command = world.command("sbx-1", "again", message="msg-again")
            delivery = Delivery(subject, command.to_json(), "COMMANDS", 9, 1, datetime.now(UTC))
            headers = dead_headers("message-relay", delivery, Problem(code=Code.INTERNAL, message="was down"))
            dead = f"sandherd.v1.dead.{Principal.MESSAGE_RELAY}.internal"
            good = (await relay.publish(dead, delivery.data, msg_id="dead-1", headers=headers)).seq
            async with world.herd.bus(Principal.OPERATOR) as operator:
                answers = [await operator.ask(RequeueMessageRelay(number=n), "fleet") for n in (good, 1)]
            await world.until_said("msg-again", "acknowledged")
            left = (await relay.js.stream_info("DEAD")).state
    assert [answer.outcome for answer in answers] == ["done", "dead"]
    assert (left.messages, left.first_seq) == (1, 1)
    assert worker.heard == ["first", "again"]


async def send_in_order(world: World, sandbox: str, count: int) -> None:
    for number in range(count):
        await world.send(sandbox, str(number))


def slow_timer_out_of_reach(monkeypatch: Any) -> None:
    monkeypatch.setattr("message_relay.delivering.FIRST_PAUSE", 3600.0)
    monkeypatch.setattr("message_relay.delivering.LONGEST_PAUSE", 3600.0)
    monkeypatch.setattr("message_relay.delivering.LOOKED_THROUGH_EVERY", 3600.0)
