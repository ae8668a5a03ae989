"""Floods of a sandbox's approvals and of a project's messages are refused with a code, and others are served.

Invariant: what one sandbox or project can store or have open at the relay has its own maximum, so that it uses only its
own share.
"""

import json
from typing import Any

import pytest

from message_relay.approval_handler import ApprovalHandler
from message_relay.approval_store import EXPIRED_TTL
from sandherd.bus.consumers.dead_letters import PROJECT_BYTES
from sandherd.bus.errors import RefusedError
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import RequeueMessageRelay
from sandherd.contracts.subjects import Principal

World = Any


async def resize(world: World, stream: str, max_bytes: int) -> None:
    async with world.herd.provisioner() as jetstream:
        config = (await jetstream.stream_info(stream)).config
        config.max_bytes = max_bytes
        await jetstream.update_stream(config)


async def test_open_approvals_of_a_sandbox_are_limited(world: World) -> None:
    """A request over the limit is denied at once, with a code; another sandbox is not affected."""
    for sandbox in ("sbx-mad", "sbx-1"):
        await world.record(sandbox)
    async with world.relay(open_approvals=3).running():
        for number in range(6):
            await world.ask("sbx-mad", f"mad-{number}")
        await world.until(lambda: all(world.approvals[f"mad-{number}"] for number in range(6)))
        await world.ask("sbx-1", "mine")
        await world.until(lambda: world.approvals["mine"] == ["requested"])
        stored = await world.stored("approval_id")
    assert [world.approvals[f"mad-{number}"] for number in range(6)] == [["requested"]] * 3 + [["denied"]] * 3
    (denied,) = stored["mad-5"]
    assert (denied["sequence"], denied["data"]["code"], denied["data"]["by"]) == (1, "refused", "message-relay")


async def test_decided_approval_frees_its_place(world: World) -> None:
    """Only open approvals count."""
    await world.record("sbx-1")
    async with world.relay(open_approvals=1).running():
        await world.ask("sbx-1", "first")
        await world.until(lambda: world.approvals["first"] == ["requested"])
        await world.decide("sbx-1", "first")
        await world.until(lambda: world.approvals["first"] == ["requested", "granted"])
        await world.ask("sbx-1", "second")
        await world.until(lambda: bool(world.approvals["second"]))
    assert world.approvals["second"] == ["requested"]


async def test_repeated_approval_is_accepted_at_the_limit(world: World) -> None:
    """A restarted worker can repeat its request, also at the limit."""
    await world.record("sbx-1")
    async with world.relay(open_approvals=1).running():
        await world.ask("sbx-1", "first")
        await world.until(lambda: world.approvals["first"] == ["requested"])
        await world.ask("sbx-1", "first")
        await world.ask("sbx-1", "other")
        await world.until(lambda: bool(world.approvals["other"]))
    assert world.approvals["first"] == ["requested"]
    assert world.approvals["other"] == ["denied"]


async def test_open_approvals_of_a_project_are_limited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of a project counts the approvals of all its sandboxes."""
    monkeypatch.setattr(ApprovalHandler.__init__, "__defaults__", (100, 2))
    async with world.relay().running():
        for number in range(3):
            await world.record(f"sbx-{number}")
            await world.ask(f"sbx-{number}", f"of-{number}")
            await world.until(lambda number=number: bool(world.approvals[f"of-{number}"]))
        (denied,) = (await world.stored("approval_id"))["of-2"]
    assert [world.approvals[f"of-{number}"] for number in range(3)] == [["requested"], ["requested"], ["denied"]]
    assert "of project default" in denied["data"]["reason"]


async def test_withdrawn_requests_use_little_and_expire_soon(world: World) -> None:
    """Withdrawn requests with the longest texts are shortened, and stored for minutes."""
    await world.record("sbx-mad")
    long = "\N{GRINNING FACE}" * 4000
    async with world.relay(open_approvals=1).running(), world.herd.bus(Principal.MESSAGE_RELAY) as bus:
        for number in range(5):
            name = f"mad-{number}"
            await world.ask("sbx-mad", name, tool="\N{GRINNING FACE}" * 200, reason=long)
            await world.withdraw("sbx-mad", name, reason=long)
            await world.until(lambda name=name: world.approvals[name] == ["requested", "expired"])

        async def entries() -> list[Any]:
            state = (await bus.js.stream_info("KV_approvals", subjects_filter=">")).state
            return [await bus.js.get_last_msg("KV_approvals", subject) for subject in state.subjects or {}]

        while not all((one.headers or {}).get("Nats-TTL") == EXPIRED_TTL for one in await entries()):
            await world.speak("sbx-mad")
        assert sum(len(one.data or b"") for one in await entries()) < 5 * 3000


async def test_full_bucket_blocks_no_decision(world: World) -> None:
    """New requests are denied before the bucket is full; waiting ones can be decided, which frees space."""
    for sandbox in ("sbx-mad", "sbx-1"):
        await world.record(sandbox)
    await resize(world, "KV_approvals", 128 * 1024)
    async with world.relay().running(), world.worker("sbx-1"):
        await world.ask("sbx-1", "mine")
        await world.until(lambda: world.approvals["mine"] == ["requested"])
        for number in range(40):
            await world.ask("sbx-mad", f"mad-{number}", reason="x" * 4000)
        await world.until(lambda: all(world.approvals[f"mad-{number}"] for number in range(40)))
        assert world.approvals["mad-0"] == ["requested"]
        assert world.approvals["mad-39"] == ["denied"]
        await world.decide("sbx-1", "mine")
        await world.until(lambda: world.approvals["mine"] == ["requested", "granted"])
        await resize(world, "KV_approvals", 1024 * 1024)
        number, state = 0, ["denied"]
        while state == ["denied"]:  # the size that was read before is used for a second
            number += 1
            await world.ask("sbx-1", f"again-{number}")
            await world.until(lambda number=number: bool(world.approvals[f"again-{number}"]))
            state = world.approvals[f"again-{number}"]
        assert state == ["requested"]


async def test_messages_to_a_projects_sandboxes_are_limited(world: World) -> None:
    """A message beyond the limit is rejected with a code, whichever of the project's sandboxes it is for."""
    for sandbox in ("sbx-a", "sbx-b", "sbx-c"):
        await world.record(sandbox)
    async with world.relay(project_messages=2).running():
        for sandbox in ("sbx-a", "sbx-b"):
            await world.until_published(await world.send(sandbox), "queued")
        refused = await world.send("sbx-c")
        await world.until_published(refused, "rejected")
        (event,) = (await world.stored())[refused]
    assert event["data"]["code"] == "refused"
    assert "project" in event["data"]["reason"]


@pytest.mark.own_broker
async def test_invalid_messages_of_a_sandbox_are_counted_and_not_stored(world: World) -> None:
    """A few of 300 invalid messages are stored as dead letters, and another sandbox's message is delivered."""
    for sandbox in ("sbx-mad", "sbx-1"):
        await world.record(sandbox)
    async with world.relay(dead_letters_per_minute=5).running() as relay, world.worker("sbx-1") as worker:
        async with world.herd.bus(Principal.WORKER, sandbox="sbx-mad") as mad:
            for number in range(300):
                await mad.publish("sandherd.v1.event.default.sbx-mad.agent.message_sent", b"1", msg_id=f"junk-{number}")
        await world.until_published(await world.send("sbx-1", "hello"), "acknowledged")
        name = "sandherd_dead_letters_dropped_total"
        labels = {"consumer": "message-relay-agents", "code": "invalid_field"}

        def dropped() -> float:
            found = [
                relay.registry.get_sample_value(name, {**labels, "code": code})
                for code in ("invalid_field", "invalid_json")
            ]
            return sum(value or 0 for value in found)

        while dropped() < 295:
            await world.speak("sbx-1")
        assert await world.dead(5) == 5
    assert worker.received == ["hello"]


@pytest.mark.own_broker
async def test_large_commands_do_not_displace_dead_letters_of_others(world: World) -> None:
    """A project has at most 1 MiB of invalid commands stored, which each name another sandbox; then excerpts."""
    await world.record("sbx-1")
    subject, body = "sandherd.v1.command.message-relay.send_message.default", "x" * 200_000
    async with world.relay().running(), world.worker("sbx-1") as worker:
        for number in range(30):
            document = json.dumps({"data": {"sandbox": f"sbx-{number}", "content": body}}).encode()
            await world.client.publish_stored(subject, document, msg_id=f"large-{number}")
        assert await world.dead(30) == 30
        async with world.herd.bus(Principal.MESSAGE_RELAY) as bus:
            assert (await bus.js.stream_info("DEAD")).state.bytes < PROJECT_BYTES + 30 * 4096
        async with world.herd.bus(Principal.OPERATOR) as operator:
            with pytest.raises(RefusedError, match="only the beginning"):
                await operator.ask(RequeueMessageRelay(number=30), FLEET)
        await world.until_published(await world.send("sbx-1", "hello"), "acknowledged")
    assert worker.received == ["hello"]
