"""The name of a message is unique in its project: other content with it is refused, and the same is a repetition."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import nats.js.errors
import pytest

from sandherd.bus.consumers.consumer import DONE, Delivery
from sandherd.contracts.commands import SendMessage
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.errors import ContractError
from sandherd.contracts.events.conversation import AgentMessageSent
from sandherd.contracts.inbox_messages import InboxMessage
from sandherd.contracts.names import new_name
from sandherd.contracts.subjects import Principal, command_subject
from tests.integration.message_relay.dying_relay import Killed, Relay
from tests.integration.message_relay.test_relay_floods import resize
from tests.patience import PATIENCE

World = Any
KEY = ("default", "sbx-1")
STEPS = ("claim", "keep", "say queued", "hand over", "say delivered", "say acknowledged", "remove")
DELIVERED = ["message.queued", "message.delivered", "message.acknowledged"]
CHOSEN = "msg-1"


@pytest.mark.parametrize("generated", [True, False], ids=["generated", "chosen"])
@pytest.mark.parametrize("changed", [{"content": "other"}, {"sandbox": "sbx-2"}, {"expires": 60}], ids=str)
async def test_other_content_under_a_used_name_is_refused(world: World, changed: Any, generated: bool) -> None:
    """The event has the command's id and `conflict`, and is about the command's entity; the first is delivered once."""
    for sandbox in ("sbx-1", "sbx-2"):
        await world.record(sandbox)
    name = new_name("msg") if generated else CHOSEN
    async with world.relay().running(), world.worker("sbx-1") as worker, world.worker("sbx-2") as other:
        await world.send("sbx-1", "first", message=name)
        await world.until_published(name, "acknowledged")
        second = world.command(**{"sandbox": "sbx-1", "content": "first", "message": name} | changed)
        await world.client.publish_command(second)
        await world.until(lambda: str(second.id) in world.refused)
        await world.until_published(await world.send("sbx-1", "last"), "acknowledged")
        events = await world.relayed()
    refused = world.refused[str(second.id)]
    assert (refused["command"], refused["code"], refused["field"]) == (SendMessage.type, "conflict", "data.message")
    assert (worker.received, other.received) == (["first", "last"], [])
    assert [event["type"] for event in (await world.stored())[name]] == DELIVERED
    world.check_sequences(events)


async def test_name_with_the_same_content_is_one_message_after_it_ended(world: World) -> None:
    """A repetition is neither delivered nor refused, even if the broker does not know the first any more."""
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1") as worker:
        for _ in range(2):
            await world.send("sbx-1", "once", message=CHOSEN)
            await world.until_published(CHOSEN, "acknowledged")
            async with world.herd.bus(Principal.MESSAGE_RELAY) as bus:
                assert await bus.js.get_last_msg("KV_messages", f"$KV.messages.default.{CHOSEN}")
        await world.end("sbx-1")
        await world.send("sbx-1", "once", message=CHOSEN)
        await world.record("sbx-2")
        await world.until_published(await world.send("sbx-2"), "queued")
        await world.until_published(await world.send("sbx-1"), "rejected")
    assert (worker.received, world.refused) == (["once"], {})
    assert [event["type"] for event in (await world.stored())[CHOSEN]] == DELIVERED


async def test_of_two_senders_at_once_one_has_the_name(world: World) -> None:
    """Of twenty names, each with two contents, through two relays, one content is delivered and the other refused."""
    sandboxes = [await world.record(f"sbx-{number}") for number in range(2)]
    workers = [await world.stack.enter_async_context(world.worker(sandbox)) for sandbox in sandboxes]
    names = [f"msg-{number}" for number in range(20)]
    async with world.relay().running(), world.relay().running():
        commands = [world.command(one, one, message=name) for name in names for one in sandboxes]
        await asyncio.gather(*(world.client.publish_command(command) for command in commands))
        await world.until(lambda: len(world.refused) == len(names))
        await world.until(lambda: all("acknowledged" in world.published[name] for name in names))
        await world.until_inbox_has(0)
        events, stored = await world.relayed(), await world.stored()
    assert sum(len(worker.received) for worker in workers) == len(names)
    assert {refusal["code"] for refusal in world.refused.values()} == {"conflict"}
    assert all([event["type"] for event in stored[name]] == DELIVERED for name in names)
    world.check_sequences(events)


def delivery_of(content: str, sequence: int, deliveries: int, at: datetime, message: str = CHOSEN) -> Delivery:
    data = SendMessage(message=message, sandbox="sbx-1", content=content)
    envelope: Envelope[Any] = wrap(
        data, data.type, source="/sandherd/client/x", sequence=1, project="default", subject="sbx-1", time=at
    )
    return Delivery(command_subject(data.type, "default"), envelope.to_json(), "COMMANDS", sequence, deliveries, at)


async def live_once(world: World, command: Delivery, acts: int | None = None) -> str:
    """Run a relay that is killed before act number `acts`. Returns the outcome of the command."""
    async with world.herd.bus(Principal.MESSAGE_RELAY) as bus:
        relay = Relay(bus, acts)
        try:
            outcome = await relay.taking.handle(command)
            await relay.pump.drain(KEY)
        except Killed:
            return "killed"
        except ContractError as error:
            return error.problem.code.value
        return "done" if outcome is DONE else "retried"


@pytest.mark.parametrize("killed_at", range(len(STEPS)), ids=STEPS)
@pytest.mark.parametrize("name", [CHOSEN, None], ids=["chosen", "generated"])
async def test_name_belongs_to_one_command_after_a_kill_before_any_act(
    world: World, killed_at: int, name: str | None
) -> None:
    """The first command has the name once it has claimed it, although another comes between, and is delivered once."""
    await world.record("sbx-1")
    at, name = datetime.now(UTC), name or new_name("msg")
    async with world.worker("sbx-1") as worker:
        assert await live_once(world, delivery_of("first", 1, 1, at, name), killed_at) == "killed"
        second = await live_once(world, delivery_of("second", 2, 1, at + timedelta(seconds=1), name))
        first = await live_once(world, delivery_of("first", 1, 2, at, name))
        assert worker.received == (["second"] if killed_at == 0 else ["first"])
    assert (first, second) == (("conflict", "done") if killed_at == 0 else ("done", "conflict"))
    events = await world.relayed()
    assert [event["type"] for event in sorted(events, key=lambda event: event["sequence"])] == DELIVERED
    world.check_sequences(events)
    assert await world.inbox_size() == 0


async def test_rejected_command_leaves_its_name_free(world: World) -> None:
    """The rejection has its own source; sent again to the existing sandbox, the message is delivered from 1 on."""
    async with world.relay().running():
        rejected = world.command("sbx-1", "hello", message=CHOSEN)
        await world.client.publish_command(rejected)
        await world.until_published(CHOSEN, "rejected")
        await world.record("sbx-1")
        async with world.worker("sbx-1") as worker:
            await world.send("sbx-1", "hello", message=CHOSEN)
            await world.until_published(CHOSEN, "acknowledged")
        events = await world.relayed()
    assert worker.received == ["hello"]
    assert [event["type"] for event in events] == ["message.rejected", *DELIVERED]
    assert events[0]["data"]["command_id"] == str(rejected.id)
    assert len({event["source"] for event in events}) == 2
    world.check_sequences(events)


async def test_rejection_is_not_reconsidered_after_a_kill(world: World) -> None:
    """After the relay was killed the redelivered command stays rejected, although the sandbox exists now."""
    at = datetime.now(UTC)
    await live_once(world, delivery_of("hello", 1, 1, at))
    await world.record("sbx-1")
    async with world.worker("sbx-1") as worker:
        await live_once(world, delivery_of("hello", 1, 2, at))
    assert [event["type"] for event in await world.relayed()] == ["message.rejected"]
    assert worker.received == []


async def test_name_of_a_message_that_a_full_inbox_refused_is_free(world: World) -> None:
    """The rejection for a full inbox releases the name, and the same command is accepted later."""
    await world.record("sbx-1")
    async with world.herd.provisioner() as jetstream:
        config = (await jetstream.stream_info("INBOX")).config
        await jetstream.update_stream(replace(config, max_msgs_per_subject=1))
    async with world.relay().running():
        await world.until_published(await world.send("sbx-1", "first"), "queued")
        await world.send("sbx-1", "second", message=CHOSEN)
        await world.until_published(CHOSEN, "rejected")
        async with world.worker("sbx-1") as worker:
            await world.until_after(lambda: world.speak("sbx-1"), lambda: worker.received == ["first"])
            await world.until_inbox_has(0)
            await world.send("sbx-1", "third", message=CHOSEN)
            await world.until_published(CHOSEN, "acknowledged")
        world.check_sequences(await world.relayed())
    assert worker.received == ["first", "third"]


async def test_reused_name_is_another_message_when_it_is_free_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its time to live the agent gets both messages, and no sequence number of a source is used twice."""
    monkeypatch.setattr("message_relay.name_claims.RESERVED", timedelta())
    await world.record("sbx-1")
    generated = new_name("msg")
    async with (
        world.relay().running(),
        world.worker("sbx-1") as worker,
        world.herd.bus(Principal.MESSAGE_RELAY) as bus,
    ):
        for content in ("first", "second"):
            for name in (CHOSEN, generated):
                command = world.command("sbx-1", content, message=name, expires=1)
                await world.client.publish_command(command)
                await world.until(
                    lambda name=name, content=content: (
                        world.published[name].count("acknowledged") > (content == "second")
                    )
                )
                await until_free(bus, name)
        events = await world.relayed()
    assert worker.received == ["first", "first", "second", "second"]
    assert world.refused == {}
    world.check_sequences(events)


async def until_free(bus: Any, name: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await bus.js.get_last_msg("KV_messages", f"$KV.messages.default.{name}")
            except nats.js.errors.NotFoundError:
                return
            await asyncio.sleep(0.05)


async def test_names_of_a_project_are_limited_to_its_share(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project that claims many names is refused further ones, with a code; another project is served."""
    monkeypatch.setattr("message_relay.name_claims.MAX_NAMES", 3)
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1"):
        for number in range(3):
            await world.until_published(await world.send("sbx-1", message=f"many-{number}"), "acknowledged")
        refused = await world.send("sbx-1")
        await world.until_published(refused, "rejected")
        (event,) = (await world.stored())[refused]
        await world.send("sbx-1", message="many-0")  # a repetition needs no new name
        await other_project_is_served(world)
    assert event["data"]["code"] == "refused"
    assert "3 names of messages of project default" in event["data"]["reason"]


async def other_project_is_served(world: World) -> None:
    await world.spawner.js.publish("$KV.sandboxes.other.sbx-9", b'{"state": "running", "task": "task-1"}')
    data = SendMessage(message="mine", sandbox="sbx-9", content="x")
    command = wrap(
        data,
        data.type,
        source="/sandherd/client/o",
        sequence=1,
        project="other",
        subject="sbx-9",
        time=datetime.now(UTC),
    )
    async with world.herd.bus(Principal.CLIENT, project="other") as client:
        await client.publish_command(command)
    async with asyncio.timeout(PATIENCE):
        while "mine" not in await world.stored():
            await asyncio.sleep(0.05)
    assert [event["type"] for event in (await world.stored())["mine"]] == ["message.queued"]


async def test_full_bucket_of_names_blocks_no_answer(world: World) -> None:
    """New messages are rejected before the bucket is full; an approval can still be decided."""
    await world.record("sbx-1")
    await resize(world, "KV_messages", 4096)
    async with world.relay().running(), world.worker("sbx-1") as worker:
        await world.ask("sbx-1", "a1")
        await world.until(lambda: world.approvals["a1"] == ["requested"])
        sent = [await world.send("sbx-1", str(number)) for number in range(40)]
        await world.until(lambda: all({"acknowledged", "rejected"} & {*world.published[name]} for name in sent))
        assert "rejected" in world.published[sent[-1]]
        rejected = (await world.stored())[sent[-1]]
        answer = await world.decide("sbx-1", "a1")
        await world.until_published(answer, "acknowledged")
        world.check_sequences(await world.relayed())
    assert rejected[0]["data"]["code"] == "refused"
    assert worker.handed[-1] == answer


async def test_agent_cannot_repeat_the_sequences_of_a_users_message(world: World) -> None:
    """An agent's messages under the name of a user's message are delivered as well, each with its own source."""
    for sandbox in ("sbx-1", "sbx-2"):
        await world.record(sandbox)
    async with world.relay().running(), world.worker("sbx-1") as one, world.worker("sbx-2") as two:
        name = await world.send("sbx-1", "hello")
        await world.until_published(name, "acknowledged")
        for content, recipient in (("a", "sbx-1"), ("b", "sbx-1"), ("a", "sbx-2")):
            sender = "sbx-2" if recipient == "sbx-1" else "sbx-1"
            await world.by_worker(sender, AgentMessageSent(recipient=recipient, content=content, message_id=name))
        await world.until(lambda: len(one.received) == 3 and len(two.received) == 1)
        await world.until_inbox_has(0)
        events = await world.relayed()
    world.check_sequences(events)
    assert len({event["source"] for event in events}) == 4


async def test_message_of_an_agent_that_is_published_again_is_one(world: World) -> None:
    """A worker's event that is published again, when the broker does not know it any more, is delivered once."""
    for sandbox in ("sbx-1", "sbx-2"):
        await world.record(sandbox)
    event = await world.by_worker("sbx-2", AgentMessageSent(recipient="sbx-1", content="x", message_id="msg-9"))
    subject = f"sandherd.v1.event.default.sbx-2.{event.type}"
    async with world.worker("sbx-1") as worker, world.herd.bus(Principal.MESSAGE_RELAY) as bus:
        relay = Relay(bus, None)
        for sequence, later in ((1, 0), (2, 600)):
            at = event.time + timedelta(seconds=later)
            await relay.taking.pass_on(Delivery(subject, event.to_json(), "EVENTS", sequence, 1, at))
            await relay.pump.drain(KEY)
    assert len(worker.received) == 1
    world.check_sequences(await world.relayed())


@pytest.mark.own_broker
async def test_message_that_an_earlier_version_stored_is_delivered_once(world: World) -> None:
    """A message without a claim, whose command the broker redelivers to this version, is delivered once."""
    await world.record("sbx-1")
    at, name = datetime.now(UTC), new_name("msg")
    stored = InboxMessage(
        message=name,
        project="default",
        sandbox="sbx-1",
        content="hello",
        message_type="user_message",
        sent_at=at,
        expires_at=at + timedelta(hours=1),
    )
    async with world.worker("sbx-1") as worker, world.herd.bus(Principal.MESSAGE_RELAY) as bus:
        document = stored.model_dump_json(exclude_none=True).encode()
        await bus.publish("sandherd.v1.inbox.default.sbx-1", document, msg_id=f"default.sbx-1.{name}")
        assert await live_once(world, delivery_of("hello", 1, 2, at, name)) == "done"
        assert worker.received == ["hello"]
    assert [event["type"] for event in (await world.stored())[name]] == DELIVERED
    world.check_sequences(await world.relayed())
    assert await world.inbox_size() == 0
