"""Messages to sandboxes that are paused, superseded, not made yet, or without an agent, on a real broker."""

from typing import Any

from sandherd.contracts.states import SandboxState

World = Any


async def test_a_message_to_a_paused_sandbox_waits_until_it_goes_on(world: World, monkeypatch: Any) -> None:
    """Its frozen worker is not spoken to; when it goes on, what waits arrives in order, at the spawner's event."""
    slow = ("FIRST_PAUSE", "LONGEST_PAUSE", "LOOKED_THROUGH_EVERY")
    for name in slow:
        monkeypatch.setattr(f"message_relay.delivering.{name}", 3600.0)
    await world.record("sbx-1", SandboxState.PAUSED)
    await world.record("sbx-2")
    async with world.relay().running(), world.worker("sbx-1") as frozen, world.worker("sbx-2") as other:
        first, second = await world.send("sbx-1", "first"), await world.send("sbx-1", "second")
        await world.until_said(second, "queued")
        await world.until_said(await world.send("sbx-2"), "acknowledged")
        assert (frozen.handed, other.heard) == ([], ["hello"])
        await world.until_after(lambda: world.go_on("sbx-1"), lambda: "acknowledged" in world.said[second])
    assert frozen.heard == ["first", "second"]
    assert world.said[first] == world.said[second] == ["queued", "delivered", "acknowledged"]


async def test_one_that_expires_before_the_sandbox_goes_on_is_never_heard(world: World) -> None:
    """What was said to have expired does not come out of the blue after a pause; what may wait longer does."""
    await world.record("sbx-1", SandboxState.PAUSED)
    async with world.relay().running(), world.worker("sbx-1") as worker:
        hasty = await world.send("sbx-1", "hasty", expires=1)
        await world.until_said(hasty, "expired")
        patient = await world.send("sbx-1", "patient")
        await world.until_after(lambda: world.go_on("sbx-1"), lambda: "acknowledged" in world.said[patient])
    assert worker.heard == ["patient"]


async def test_what_waits_for_a_paused_sandbox_that_is_ended_is_rejected(world: World) -> None:
    """A paused sandbox may be ended without ever going on: whoever wrote is told."""
    await world.record("sbx-1", SandboxState.PAUSED)
    async with world.relay().running():
        message = await world.send("sbx-1")
        await world.until_said(message, "queued")
        end = {"attempt": 2, "reason": "expired"}
        await world.until_after(lambda: world.end("sbx-1", **end), lambda: "rejected" in world.said[message])
        [_, rejected] = (await world.stored())[message]
    assert rejected["data"]["reason"] == "sandbox sbx-1 is terminated (expired): attempt 2 of task-1 is over"


async def test_a_sandbox_of_an_attempt_that_is_over_says_so(world: World) -> None:
    """Written to after its task went on to the next attempt: rejected at once, with the attempt and its reason."""
    await world.record("sbx-1", SandboxState.TERMINATED, reason="dead")
    await world.record("sbx-2", attempt=2)
    async with world.relay().running(), world.worker("sbx-2") as worker:
        late, next_one = await world.send("sbx-1", "late"), await world.send("sbx-2", "now")
        await world.until(lambda: world.said[late] == ["rejected"] and "acknowledged" in world.said[next_one])
        [rejected] = (await world.stored())[late]
    assert rejected["data"]["reason"] == "sandbox sbx-1 is terminated (dead): attempt 1 of task-1 is over"
    assert worker.heard == ["now"]


async def test_nobody_hears_in_a_sandbox_without_an_agent(world: World) -> None:
    """Rejected at once with that reason, and its worker is not asked."""
    await world.record("sbx-1", task=None)
    async with world.relay().running(), world.worker("sbx-1") as worker:
        message = await world.send("sbx-1")
        await world.until(lambda: world.said[message] == ["rejected"])
        [rejected] = (await world.stored())[message]
    assert rejected["data"]["reason"] == "there is no agent in sandbox sbx-1: it was made without a task"
    assert (rejected["sequence"], worker.handed) == (1, [])


async def test_a_sandbox_that_is_not_made_yet_gets_its_messages_when_its_worker_comes(world: World) -> None:
    """Its record says no more than that it is wanted."""
    await world.record("sbx-1", SandboxState.REQUESTED)
    async with world.relay().running():
        message = await world.send("sbx-1", "early")
        await world.until_said(message, "queued")
        await world.record("sbx-1")
        async with world.worker("sbx-1") as worker:
            await world.until_after(lambda: world.speak("sbx-1"), lambda: "acknowledged" in world.said[message])
    assert worker.heard == ["early"]
