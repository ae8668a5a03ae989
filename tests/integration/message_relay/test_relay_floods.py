"""A sandbox that asks for too much, and a project that sends too much: refused with a code, and others are served."""

from typing import Any

from sandherd.contracts.subjects import Principal

World = Any


async def test_approvals_of_one_sandbox_have_a_limit(world: World) -> None:
    """The one after the last that may be open is denied at once, with a code; another sandbox may still ask."""
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


async def test_an_answer_makes_room_for_another_approval(world: World) -> None:
    """What counts is what is open now, not what was ever asked."""
    await world.record("sbx-1")
    async with world.relay(open_approvals=1).running():
        await world.ask("sbx-1", "first")
        await world.until(lambda: world.approvals["first"] == ["requested"])
        await world.decide("sbx-1", "first")
        await world.until(lambda: world.approvals["first"] == ["requested", "granted"])
        await world.ask("sbx-1", "second")
        await world.until(lambda: bool(world.approvals["second"]))
    assert world.approvals["second"] == ["requested"]


async def test_a_repeated_approval_is_not_one_too_many(world: World) -> None:
    """A worker that was started again asks the same once more, also where no further one may be open."""
    await world.record("sbx-1")
    async with world.relay(open_approvals=1).running():
        await world.ask("sbx-1", "first")
        await world.until(lambda: world.approvals["first"] == ["requested"])
        await world.ask("sbx-1", "first")
        await world.ask("sbx-1", "other")
        await world.until(lambda: bool(world.approvals["other"]))
    assert world.approvals["first"] == ["requested"]
    assert world.approvals["other"] == ["denied"]


async def test_messages_to_the_sandboxes_of_a_project_have_a_limit(world: World) -> None:
    """Beyond it a message is rejected with a code, whichever sandbox it is for."""
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


async def test_junk_of_one_sandbox_is_counted_and_not_stored(world: World) -> None:
    """Of 300 messages that are no events a few are stored as dead letters; another's message is delivered meanwhile."""
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
