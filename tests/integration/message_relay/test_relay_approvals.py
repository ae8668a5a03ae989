"""Approvals on a real broker: the first decision counts, and is delivered to the worker like any message."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from message_relay.approval import digest_of
from sandherd.bus.connection import Bus
from sandherd.contracts.commands import RequestApproval, WithdrawApproval
from sandherd.contracts.events.conversation import AgentMessageSent
from sandherd.contracts.inbox_messages import ApprovalAnswer, InboxMessage
from sandherd.contracts.states import SandboxState
from sandherd.contracts.subjects import Principal
from tests.patience import PATIENCE

World = Any
DELIVERED = ["queued", "delivered", "acknowledged"]


@pytest.mark.parametrize("granted", [True, False])
async def test_decision_reaches_the_requesting_worker(world: World, granted: bool) -> None:
    """The worker gets one message of the type approval with decision and reason; each step is an event."""
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1") as worker:
        handed: list[InboxMessage] = []

        def answer_and_keep(message: InboxMessage) -> bytes:
            handed.append(message)
            return bytes(worker.acknowledge(message))

        worker.answers = answer_and_keep
        request_data = await world.ask("sbx-1", "toolu_01A", reason="removes files")
        await world.until(lambda: world.approvals["toolu_01A"] == ["requested"])
        answer = await world.decide("sbx-1", "toolu_01A", granted, reason="so be it", answered_by="ada")
        await world.until_published(answer, "acknowledged")
        requested, decided = (await world.stored("approval_id"))["toolu_01A"]
        published = (await world.stored())[answer]
    [message] = handed
    answer_content = ApprovalAnswer.model_validate_json(message.content)
    assert (answer_content.approval_id, answer_content.granted, answer_content.reason) == (
        "toolu_01A",
        granted,
        "so be it",
    )
    assert (message.message, message.message_type, message.sender_id) == (answer, "approval", "ada")
    assert (requested["sequence"], requested["data"]["tool"], requested["data"]["reason"]) == (
        1,
        "Bash",
        "removes files",
    )
    assert requested["data"]["asked_in"] == str(request_data.id)
    assert (decided["sequence"], decided["type"]) == (2, f"approval.{'granted' if granted else 'denied'}")
    assert decided["data"] | {"by": "ada", "answer": answer, "reason": "so be it"} == decided["data"]
    assert requested["source"] == decided["source"]
    assert [event["data"]["message_type"] for event in published] == ["approval"] * 3


async def test_decision_is_delivered_in_order_with_messages(world: World) -> None:
    """Messages that were sent before the decision arrive before it, and later ones after it."""
    await world.record("sbx-1")
    async with world.relay().running():
        await world.ask("sbx-1", "a1")
        before = await world.send("sbx-1", "before")
        answer = await world.decide("sbx-1", "a1")
        await world.until_published(answer, "queued")
        after = await world.send("sbx-1", "after")
        async with world.worker("sbx-1") as worker:
            await world.speak("sbx-1")
            await world.until_published(after, "acknowledged")
    assert worker.handed == [before, answer, after]


@pytest.mark.parametrize("urgent", ["approval", "interrupt"])
async def test_decision_overtakes_messages_of_a_blocked_agent(world: World, monkeypatch: Any, urgent: str) -> None:
    """An agent that accepts no message before its decision gets the decision first, then the messages in order."""
    monkeypatch.setattr("message_relay.inbox_delivery.RECEIPT_WITHIN", 0.2)
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1") as worker:
        answered = asyncio.Event()

        def only_then(message: InboxMessage) -> bytes | None:
            if message.message_type == urgent:
                answered.set()
            return bytes(worker.acknowledge(message)) if answered.is_set() else None

        worker.answers = only_then
        await world.ask("sbx-1", "a1")
        first, second = await world.send("sbx-1", "first"), await world.send("sbx-1", "second")
        await world.until(lambda: first in worker.handed)
        if urgent == "approval":
            answer = await world.decide("sbx-1", "a1")
        else:
            answer = await world.send("sbx-1", "stop", message_type="interrupt")
        await world.until_published(second, "acknowledged")
        delivered = [name for name in dict.fromkeys(worker.handed) if name != first]
    assert delivered == [answer, second]
    assert all(world.published[name] == DELIVERED for name in (first, answer, second))


async def test_only_the_first_of_many_decisions_counts(world: World) -> None:
    """Of ten concurrent decisions through two relays one counts, the others are rejected with the first."""
    await world.record("sbx-1")
    async with world.relay().running(), world.relay().running(), world.worker("sbx-1") as worker:
        await world.ask("sbx-1", "a1")
        await world.until(lambda: world.approvals["a1"] == ["requested"])
        users = [f"person {number}" for number in range(10)]
        answers = await asyncio.gather(
            *(world.decide("sbx-1", "a1", place % 2 == 0, answered_by=who) for place, who in enumerate(users))
        )
        await world.until(
            lambda: all(world.published[answer][-1:] in (["acknowledged"], ["rejected"]) for answer in answers)
        )
        events, approval = await world.stored(), (await world.stored("approval_id"))["a1"]
    first = approval[1]["data"]
    assert len(approval) == 2
    assert worker.handed == [first["answer"]]
    for answer in set(answers) - {first["answer"]}:
        [rejected] = events[answer]
        assert rejected["data"]["code"] == "conflict"
        assert f"approval a1 of sbx-1 was {approval[1]['type'].removeprefix('approval.')} by {first['by']}" in str(
            rejected
        )


async def test_repeated_decision_is_one(world: World) -> None:
    """A decision that a client repeats under the same name is delivered once, and no event is repeated."""
    await world.record("sbx-1")
    async with world.relay().running():
        await world.ask("sbx-1", "a1")
        for _ in range(2):
            await world.decide("sbx-1", "a1", message="msg-1")
        last = await world.send("sbx-1", "last")
        async with world.worker("sbx-1") as worker:
            await world.speak("sbx-1")
            await world.until_published(last, "acknowledged")
        assert worker.handed == ["msg-1", last]
        assert [event["sequence"] for event in (await world.stored())["msg-1"]] == [1, 2, 3]
        assert [event["sequence"] for event in (await world.stored("approval_id"))["a1"]] == [1, 2]


async def test_decision_before_its_request_waits(world: World) -> None:
    """A decision is not refused before its request: the relay receives the two on different subjects."""
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1"):
        answer = await world.decide("sbx-1", "a1")
        await world.ask("sbx-1", "a1")
        await world.until_published(answer, "acknowledged")
    assert world.approvals["a1"] == ["requested", "granted"]


async def test_decision_on_an_unknown_approval_is_rejected(world: World, monkeypatch: Any) -> None:
    """The rejection names the approval, also if another sandbox requested it or the sandbox is unknown."""
    monkeypatch.setattr("message_relay.approval_handler.PATIENCE", timedelta(seconds=0.3))
    await world.record("sbx-1")
    await world.record("sbx-2")
    async with world.relay().running(), world.worker("sbx-1") as worker:
        await world.ask("sbx-2", "a1")
        await world.until(lambda: world.approvals["a1"] == ["requested"])
        unknown, nowhere = await world.decide("sbx-1", "a1"), await world.decide("sbx-none", "a1")
        await world.until(lambda: world.published[unknown] == world.published[nowhere] == ["rejected"])
        events = await world.stored()
    [rejected] = events[unknown]
    assert rejected["data"]["code"] == "not_found"
    assert rejected["data"]["reason"] == "the agent in sbx-1 requested no approval a1, or it expired long ago"
    assert events[nowhere][0]["data"]["reason"] == "there is no sandbox sbx-none"
    assert (worker.handed, world.approvals["a1"]) == ([], ["requested"])


async def test_unanswered_approval_expires_with_its_default(world: World) -> None:
    """approval.expired states the default; a later decision is rejected and not delivered."""
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1") as worker:
        await world.ask("sbx-1", "a1", timeout_seconds=0.2, on_timeout="deny")
        await world.ask("sbx-1", "a2", timeout_seconds=0.2, on_timeout="allow")
        await world.until(lambda: world.approvals["a1"] == world.approvals["a2"] == ["requested", "expired"])
        late = await world.decide("sbx-1", "a1")
        await world.until_published(late, "rejected")
        approvals, [rejected] = await world.stored("approval_id"), (await world.stored())[late]
    assert [approvals[name][1]["data"]["outcome"] for name in ("a1", "a2")] == ["denied", "granted"]
    assert rejected["data"]["code"] == "conflict"
    assert "approval a1 of sbx-1 expired at " in rejected["data"]["reason"]
    assert worker.handed == []


async def test_approval_of_an_ended_sandbox_expires(world: World) -> None:
    """The approval expires with its sandbox, and a decision is rejected with that reason."""
    await world.record("sbx-1")
    async with world.relay().running():
        await world.ask("sbx-1", "a1")
        await world.until(lambda: world.approvals["a1"] == ["requested"])
        await world.end("sbx-1", reason="done")
        answer = await world.decide("sbx-1", "a1")
        await world.until(lambda: world.published[answer] == ["rejected"] and len(world.approvals["a1"]) == 2)
        approvals, [rejected] = await world.stored("approval_id"), (await world.stored())[answer]
    assert (approvals["a1"][1]["type"], approvals["a1"][1]["data"]["outcome"]) == ("approval.expired", "ended")
    assert rejected["data"]["code"] == "refused"
    assert rejected["data"]["reason"] == "sandbox sbx-1 is terminated (done): attempt 1 of task-1 has ended"


async def test_undelivered_decision_of_an_ended_sandbox_is_rejected(world: World) -> None:
    """An approval that was granted and never delivered has both events."""
    await world.record("sbx-1")
    async with world.relay().running():
        await world.ask("sbx-1", "a1")
        answer = await world.decide("sbx-1", "a1")
        await world.until_published(answer, "queued")
        await world.until_after(lambda: world.end("sbx-1"), lambda: "rejected" in world.published[answer])
    assert world.approvals["a1"] == ["requested", "granted"]


async def test_decision_expires_with_its_approval(world: World) -> None:
    """A resumed sandbox does not get a decision that the time-out has replaced."""
    await world.record("sbx-1", SandboxState.PAUSED)
    async with world.relay().running(), world.worker("sbx-1") as worker:
        answered = [
            name for name, seconds in (("a1", 1.0), ("a2", 10.0)) if await is_answered_in_time(world, name, seconds)
        ]
    assert worker.handed == []
    assert answered
    assert all(world.approvals[name] == ["requested", "granted"] for name in answered)


async def is_answered_in_time(world: World, name: str, seconds: float) -> bool:
    """Whether a decision came before the time-out, and expired with it; on a busy machine it may be late."""
    await world.ask("sbx-1", name, timeout_seconds=seconds)
    answer = await world.decide("sbx-1", name)
    await world.until(lambda: bool({"expired", "rejected"} & {*world.published[answer]}))
    return "expired" in world.published[answer]


async def test_repeated_request_of_a_restarted_worker_is_one_approval(world: World) -> None:
    """There is one approval and one request event, and the one decision counts."""
    await world.record("sbx-1")
    async with world.relay().running():
        await world.ask("sbx-1", "a1")
        await world.ask("sbx-1", "a1")
        answer = await world.decide("sbx-1", "a1")
        async with world.worker("sbx-1") as worker:
            await world.speak("sbx-1")
            await world.until_published(answer, "acknowledged")
        await world.ask("sbx-1", "a2")
        await world.until(lambda: world.approvals["a2"] == ["requested"])
    assert (worker.handed, world.approvals["a1"]) == ([answer], ["requested", "granted"])


@pytest.mark.parametrize("name", ["", "x" * 129, "a\nb"])
async def test_approval_with_an_invalid_name_goes_to_dead(world: World, name: str) -> None:
    """DEAD has it with its reason, and another request is processed."""
    await world.record("sbx-1")
    async with world.relay().running():
        await world.ask("sbx-1", name)
        await world.ask("sbx-1", "a1")
        await world.until(lambda: world.approvals["a1"] == ["requested"])
        assert await world.dead(1) == 1
        async with world.herd.bus(Principal.MESSAGE_RELAY) as bus:
            dead = await bus.js.get_last_msg("DEAD", f"sandherd.v1.dead.{Principal.MESSAGE_RELAY}.invalid-field")
    assert "data.approval_id" in (dead.headers or {})["Sandherd-Reason"]
    assert world.approvals.keys() == {"a1"}


@pytest.mark.own_broker
async def test_approval_cannot_be_forged_by_a_message(world: World) -> None:
    """`send_message` of the type approval is no command: it goes to DEAD, and no worker gets it."""
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1") as worker:
        await world.ask("sbx-1", "a1")
        command = json.loads(world.command("sbx-1", '{"approval_id":"a1","granted":true}').to_json())
        command["data"]["message_type"] = "approval"
        subject = "sandherd.v1.command.message-relay.send_message.default"
        await world.client.publish(subject, json.dumps(command).encode(), msg_id="forged")
        await world.until_published(await world.send("sbx-1", "next"), "acknowledged")
        assert await world.dead(1) == 1
    assert worker.received == ["next"]


@pytest.mark.own_broker
@pytest.mark.faults
async def test_decision_survives_restarts_of_relay_and_broker(world: World) -> None:
    """A decision is made while no relay runs, and the broker is killed while it waits: it still arrives."""
    await world.record("sbx-1")
    async with world.relay().running():
        await world.ask("sbx-1", "a1")
        await world.until(lambda: world.approvals["a1"] == ["requested"])
    answer = await world.decide("sbx-1", "a1")
    async with world.relay().running():
        await world.until_published(answer, "queued")
        await world.restart_broker()
        async with world.worker("sbx-1") as worker:
            await world.until_after(lambda: world.speak("sbx-1"), lambda: worker.handed == [answer])
            await world.until_published(answer, "acknowledged")
        second = await world.decide("sbx-1", "a1", False)
        await world.until_published(second, "rejected")
        events = await world.stored()
    assert [event["type"] for event in events[answer]] == [f"message.{state}" for state in DELIVERED]


async def test_decided_approval_is_deleted_after_a_day(world: World) -> None:
    """A published decision has a time to live in the bucket, and a waiting one has none."""
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1"):
        for name in ("a1", "a2"):
            await world.ask("sbx-1", name)
        await world.until_published(await world.decide("sbx-1", "a1"), "acknowledged")
        async with world.herd.bus(Principal.MESSAGE_RELAY) as bus, asyncio.timeout(PATIENCE):
            # The record is written after the event that was waited for.
            while await life_of(bus, "a1") is None:
                await asyncio.sleep(0.02)
            assert await life_of(bus, "a1") == "86400s"
            assert await life_of(bus, "a2") is None


async def life_of(bus: Bus, name: str) -> str | None:
    """The lifetime of an approval's record."""
    subject = f"$KV.approvals.default.sbx-1.{digest_of(name)}"
    return ((await bus.js.get_last_msg("KV_approvals", subject)).headers or {}).get("Nats-TTL")


async def test_answer_with_the_name_of_a_message_is_refused(world: World) -> None:
    """The sender gets the error, and the approval can be decided under another name."""
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1") as worker:
        name = await world.send("sbx-1", "hello")
        await world.until_published(name, "acknowledged")
        await world.ask("sbx-1", "toolu_01A")
        await world.until(lambda: world.approvals["toolu_01A"] == ["requested"])
        command = world.answer("sbx-1", "toolu_01A", True, message=name)
        await world.client.publish_command(command)
        await world.until(lambda: str(command.id) in world.refused)
        assert world.refused[str(command.id)]["code"] == "conflict"
        assert world.approvals["toolu_01A"] == ["requested"]
        answer = await world.decide("sbx-1", "toolu_01A")
        await world.until_published(answer, "acknowledged")
    assert worker.handed == [name, answer]


async def test_answer_with_the_name_of_an_agents_message_is_delivered(world: World) -> None:
    """An agent can't occupy a name that a user may choose."""
    for sandbox in ("sbx-1", "sbx-2"):
        await world.record(sandbox)
    async with world.relay().running(), world.worker("sbx-1") as worker, world.worker("sbx-2"):
        published = AgentMessageSent(recipient="sbx-1", content="x", message_id="msg-1")
        await world.by_worker("sbx-2", published)
        await world.until_published("msg-1", "acknowledged")
        await world.ask("sbx-1", "toolu_01A")
        await world.until(lambda: world.approvals["toolu_01A"] == ["requested"])
        await world.decide("sbx-1", "toolu_01A", message="msg-1")
        await world.until(lambda: len(worker.received) == 2)
        await world.until_inbox_has(0)
    assert worker.handed == ["msg-1", "msg-1"]
    world.check_sequences(await world.relayed())


async def test_approval_of_a_service_is_answered_by_an_event(world: World) -> None:
    """A service's approval is decided by an event and no worker gets it; only the service can withdraw it."""
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1") as worker:
        for name in ("pause-1", "pause-2"):
            await world.by_monitor(RequestApproval(sandbox="sbx-1", approval_id=name, tool="continue", reason="paused"))
            await world.until(lambda name=name: world.approvals[name] == ["requested"])
        await world.withdraw("sbx-1", "pause-1")
        await world.ask("sbx-1", "a1")  # handled after the withdrawal
        await world.until(lambda: world.approvals["a1"] == ["requested"])
        answer = await world.decide("sbx-1", "pause-1", True, reason="the other file", answered_by="ada")
        await world.until_published(answer, "acknowledged")
        await world.by_monitor(WithdrawApproval(sandbox="sbx-1", approval_id="pause-2", reason="resumed"))
        await world.until(lambda: world.approvals["pause-2"] == ["requested", "expired"])
        stored, published = await world.stored("approval_id"), (await world.stored())[answer]
    requested, granted = stored["pause-1"]
    assert (requested["data"]["requested_by"], requested["data"].get("asked_in")) == ("monitor", None)
    assert (granted["type"], granted["data"]["reason"], granted["data"]["by"]) == (
        "approval.granted",
        "the other file",
        "ada",
    )
    assert stored["pause-2"][1]["data"]["outcome"] == "withdrawn"
    assert [event["type"].removeprefix("message.") for event in published] == DELIVERED
    assert worker.handed == []
