"""Floods of a sandbox's approvals and of a project's messages are refused with a code, and others are served.

Invariant: whatever one sandbox or project may have stored or open at the relay has a maximum of its own, so that it
uses up its own share and no other's.
"""

import json
from typing import Any

import pytest

from sandherd.bus.consumers.dead_letters import PROJECT_BYTES
from sandherd.bus.errors import RefusedError
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import RequeueMessageRelay
from sandherd.contracts.subjects import Principal

World = Any


async def test_open_approvals_of_a_sandbox_are_limited(world: World) -> None:
    """The one over the limit is denied at once, with a code; another sandbox is not affected."""
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
    """A restarted worker repeats its request, also where no further one may be open."""
    await world.record("sbx-1")
    async with world.relay(open_approvals=1).running():
        await world.ask("sbx-1", "first")
        await world.until(lambda: world.approvals["first"] == ["requested"])
        await world.ask("sbx-1", "first")
        await world.ask("sbx-1", "other")
        await world.until(lambda: bool(world.approvals["other"]))
    assert world.approvals["first"] == ["requested"]
    assert world.approvals["other"] == ["denied"]


async def test_messages_to_a_projects_sandboxes_are_limited(world: World) -> None:
    """Beyond the limit a message is rejected with a code, whichever sandbox it is for."""
    for sandbox in ("sbx-a", "sbx-b", "sbx-c"):
        await world.record(sandbox)
    async with world.relay(project_messages=2).running():
        for sandbox in ("sbx-a", "sbx-b"):
            await world.until_said(await world.send(sandbox), "queued")
        refused = await world.send("sbx-c")
        await world.until_said(refused, "rejected")
        (event,) = (await world.stored())[refused]
    assert event["data"]["code"] == "refused"
    assert "project" in event["data"]["reason"]


async def test_invalid_messages_of_a_sandbox_are_counted_and_not_stored(world: World) -> None:
    """Of 300 a few are stored as dead letters; another's message is delivered meanwhile."""
    for sandbox in ("sbx-mad", "sbx-1"):
        await world.record(sandbox)
    async with world.relay(dead_letters_per_minute=5).running() as relay, world.worker("sbx-1") as worker:
        async with world.herd.bus(Principal.WORKER, sandbox="sbx-mad") as mad:
            for number in range(300):
                await mad.publish("sandherd.v1.event.default.sbx-mad.agent.message_sent", b"1", msg_id=f"junk-{number}")
        await world.until_said(await world.send("sbx-1", "hello"), "acknowledged")
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
    assert worker.heard == ["hello"]


async def test_large_commands_do_not_displace_dead_letters_of_others(world: World) -> None:
    """Of bad commands that name another sandbox each, a project has at most 1 MiB stored, then excerpts."""
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
        await world.until_said(await world.send("sbx-1", "hello"), "acknowledged")
    assert worker.heard == ["hello"]
