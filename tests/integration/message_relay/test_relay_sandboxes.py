"""Messages to sandboxes that are paused, superseded, not created yet, or without an agent, on a real broker."""

from typing import Any

from sandherd.backoff import Backoff
from sandherd.contracts.states import SandboxState

World = Any


async def test_message_to_a_paused_sandbox_waits_for_its_resumption(world: World, monkeypatch: Any) -> None:
    """A frozen worker is sent nothing; at the spawner's event the waiting messages are delivered in order."""
    monkeypatch.setattr("message_relay.dispatcher.BACKOFF", Backoff(base=7200.0, cap=7200.0, jitter=0.5))
    monkeypatch.setattr("message_relay.dispatcher.SCAN_INTERVAL", 3600.0)
    await world.record("sbx-1", SandboxState.PAUSED)
    await world.record("sbx-2")
    async with world.relay().running(), world.worker("sbx-1") as frozen, world.worker("sbx-2") as other:
        first, second = await world.send("sbx-1", "first"), await world.send("sbx-1", "second")
        await world.until_published(second, "queued")
        await world.until_published(await world.send("sbx-2"), "acknowledged")
        assert (frozen.handed, other.received) == ([], ["hello"])
        await world.until_after(lambda: world.go_on("sbx-1"), lambda: "acknowledged" in world.published[second])
    assert frozen.received == ["first", "second"]
    assert world.published[first] == world.published[second] == ["queued", "delivered", "acknowledged"]


async def test_message_that_expires_during_a_pause_is_not_delivered(world: World) -> None:
    """A message that expired is not delivered after a pause; one with more time is."""
    await world.record("sbx-1", SandboxState.PAUSED)
    async with world.relay().running(), world.worker("sbx-1") as worker:
        hasty = await world.send("sbx-1", "hasty", expires=1)
        await world.until_published(hasty, "expired")
        patient = await world.send("sbx-1", "patient")
        await world.until_after(lambda: world.go_on("sbx-1"), lambda: "acknowledged" in world.published[patient])
    assert worker.received == ["patient"]


async def test_message_to_a_paused_sandbox_that_ends_is_rejected(world: World) -> None:
    """A paused sandbox may end without a resumption: the sender gets the rejection."""
    await world.record("sbx-1", SandboxState.PAUSED)
    async with world.relay().running():
        message = await world.send("sbx-1")
        await world.until_published(message, "queued")
        end = {"attempt": 2, "reason": "expired"}
        await world.until_after(lambda: world.end("sbx-1", **end), lambda: "rejected" in world.published[message])
        [_, rejected] = (await world.stored())[message]
    assert rejected["data"]["reason"] == "sandbox sbx-1 is terminated (expired): attempt 2 of task-1 has ended"


async def test_message_to_an_earlier_attempt_is_rejected_with_its_reason(world: World) -> None:
    """The rejection comes at once, with the attempt and the reason of its end."""
    await world.record("sbx-1", SandboxState.TERMINATED, reason="dead")
    await world.record("sbx-2", attempt=2)
    async with world.relay().running(), world.worker("sbx-2") as worker:
        late, next_one = await world.send("sbx-1", "late"), await world.send("sbx-2", "now")
        await world.until(lambda: world.published[late] == ["rejected"] and "acknowledged" in world.published[next_one])
        [rejected] = (await world.stored())[late]
    assert rejected["data"]["reason"] == "sandbox sbx-1 is terminated (dead): attempt 1 of task-1 has ended"
    assert worker.received == ["now"]


async def test_message_to_a_sandbox_without_an_agent_is_rejected(world: World) -> None:
    """The rejection comes at once with that reason, and the worker is sent nothing."""
    await world.record("sbx-1", task=None)
    async with world.relay().running(), world.worker("sbx-1") as worker:
        message = await world.send("sbx-1")
        await world.until(lambda: world.published[message] == ["rejected"])
        [rejected] = (await world.stored())[message]
    assert rejected["data"]["reason"] == "there is no agent in sandbox sbx-1: it was created without a task"
    assert (rejected["sequence"], worker.handed) == (1, [])


async def test_message_to_a_requested_sandbox_waits_for_its_worker(world: World) -> None:
    """A message to a sandbox whose record has only the first state waits for its worker."""
    await world.record("sbx-1", SandboxState.REQUESTED)
    async with world.relay().running():
        message = await world.send("sbx-1", "early")
        await world.until_published(message, "queued")
        await world.record("sbx-1")
        async with world.worker("sbx-1") as worker:
            await world.until_after(lambda: world.speak("sbx-1"), lambda: "acknowledged" in world.published[message])
    assert worker.received == ["early"]
