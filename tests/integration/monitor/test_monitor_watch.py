"""The monitor on a real broker finds problems, acts once on each, and survives failures."""

import asyncio
import os
import signal
import sys
import time
from typing import Any

import pytest

from sandherd.contracts.states import SandboxState
from sandherd.contracts.subjects import Principal
from tests.integration.monitor.conftest import DEAD_AFTER
from tests.polling import eventually

World = Any


async def test_silent_sandbox_is_reported_dead_once(world: World) -> None:
    """One event and one command have the reason; a sandbox with heartbeats is left alone."""
    await world.born("sbx-dead")
    await world.born("sbx-alive")
    async with world.beating("sbx-alive"), world.monitor(dead_after=DEAD_AFTER).running():
        await world.until(lambda: world.requested("sbx-dead"))
        await world.born("sbx-later")
        await world.until(lambda: world.requested("sbx-later"))
    [found] = world.of("monitor.dead_found", "sbx-dead")
    assert found["data"]["rule"] == "dead"
    assert found["data"]["age_seconds"] >= found["data"]["limit_seconds"] == DEAD_AFTER
    assert found["taskid"] == "task-1"
    assert world.requested("sbx-dead") == ["dead"]
    assert world.requested("sbx-alive") == []


async def test_silent_sandbox_is_found(world: World) -> None:
    """A sandbox that has published nothing is found by the spawner's events."""
    await world.record("sbx-mute")
    await world.by_spawner("sbx-mute", "sandbox.requested")
    async with world.monitor(dead_after=0.5).running():
        await world.until(lambda: world.requested("sbx-mute") == ["dead"])


async def test_idle_sandbox_is_found_and_a_busy_one_is_not(world: World) -> None:
    """A call in progress is activity; heartbeats are not."""
    await world.born("sbx-idle")
    await world.born("sbx-busy")
    await world.by_worker("sbx-busy", "agent.tool_use", tool="Bash", tool_use_id="1")
    limits = {"dead_after": DEAD_AFTER, "idle_after": 0.5, "stuck_after": 3}
    async with world.beating("sbx-idle"), world.beating("sbx-busy"), world.monitor(**limits).running():
        await world.until(lambda: world.requested("sbx-idle"))
        await world.until(lambda: world.requested("sbx-busy"))
    assert world.requested("sbx-idle") == ["idle"]
    assert world.requested("sbx-busy") == ["stuck"]
    assert sorted(event["data"]["rule"] for event in world.of("monitor.idle_found")) == ["idle", "stuck"]


async def test_finished_and_too_old_sandboxes_are_found(world: World) -> None:
    """Finished and too old sandboxes are found, each with its own reason."""
    await world.born("sbx-done")
    await world.by_worker("sbx-done", "agent.completed")
    async with world.beating("sbx-done"), world.monitor(dead_after=DEAD_AFTER, finished_after=0.5).running():
        await world.until(lambda: world.requested("sbx-done") == ["finished"])
    await world.born("sbx-old")
    async with world.monitor(max_age=0.5).running():
        await world.until(lambda: world.requested("sbx-old") == ["too_old"])


async def test_sandbox_ended_by_the_spawner_is_not_reported(world: World) -> None:
    """The record states that it has ended, although the monitor missed its last event."""
    await world.born("sbx-gone")
    await world.record("sbx-gone", SandboxState.TERMINATED)
    await world.by_spawner("sbx-unknown", "sandbox.requested")
    await world.born("sbx-dead")
    async with world.monitor(dead_after=0.5).running():
        await world.until(lambda: world.requested("sbx-dead"))
    assert world.requested("sbx-gone") == world.requested("sbx-unknown") == []


async def test_restarted_monitor_repeats_no_finding(world: World) -> None:
    """A finding from before the restart is not repeated, and one that was due meanwhile is made."""
    await world.born("sbx-1")
    async with world.monitor(dead_after=0.5).running():
        await world.until(lambda: world.requested("sbx-1"))
    await world.born("sbx-2")
    async with world.monitor(dead_after=0.5).running():
        await world.until(lambda: world.requested("sbx-2"))
    assert world.requested("sbx-1") == world.requested("sbx-2") == ["dead"]


@pytest.mark.faults
async def test_successor_of_a_killed_monitor_repeats_no_finding(world: World) -> None:
    """After a kill without a snapshot the next monitor acquires the lease, reads the stream, and continues."""
    await world.born("sbx-1")
    settings = world.herd.settings(Principal.MONITOR)
    environment = os.environ | {
        "NATS_URL": settings.nats_url,
        "SANDHERD_CREDENTIALS": str(settings.credentials),
        "SANDHERD_DEAD_AFTER": "0.5",
        "SANDHERD_CHECK_INTERVAL": "0.1",
    }
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "monitor.main", env=environment)
    await world.until(lambda: world.requested("sbx-1"))
    process.send_signal(signal.SIGKILL)
    await process.wait()
    await world.born("sbx-2")
    async with world.monitor(dead_after=0.5).running():
        await world.until(lambda: world.requested("sbx-2"))
    assert world.requested("sbx-1") == world.requested("sbx-2") == ["dead"]


async def test_second_monitor_takes_over(world: World) -> None:
    """Each finding is reported once, and when the first stops, the second continues."""
    await world.born("sbx-1")
    async with world.monitor(dead_after=0.5).running() as second:
        async with world.monitor(dead_after=0.5).running():
            await world.until(lambda: world.requested("sbx-1"))
        await world.born("sbx-2")
        await world.until(lambda: world.requested("sbx-2"))
        await eventually(lambda: second.health.problems() == {})
    assert world.requested("sbx-1") == world.requested("sbx-2") == ["dead"]


@pytest.mark.own_broker
async def test_sandbox_is_not_dead_because_the_broker_was(world: World) -> None:
    """Silence counts from the broker's return."""
    await world.born("sbx-other")
    async with world.monitor(dead_after=DEAD_AFTER).running():
        await world.born("sbx-1")
        begun = time.monotonic()
        while time.monotonic() - begun < 0.8:
            await world.by_worker("sbx-other", "agent.waiting")
        silent = time.monotonic() - begun
        await world.herd.kill()
        await world.herd.restart()
        await world.until(lambda: world.requested("sbx-1"))
    [found] = world.of("monitor.dead_found", "sbx-1")
    assert found["data"]["age_seconds"] >= DEAD_AFTER + silent


async def test_follower_without_live_events_reads_the_stream(world: World) -> None:
    """Without the subscription to new events the monitor finds later events by reading the stream."""
    await world.born("sbx-1")
    async with world.monitor(dead_after=0.5).running() as service:
        await world.until(lambda: world.requested("sbx-1"))
        live = [one for one in service.bus.client._subs.values() if one.subject.startswith("sandherd.live.")]
        assert live
        for one in live:  # also the conductor's
            await one.unsubscribe()
        await world.born("sbx-2")
        await world.until(lambda: world.requested("sbx-2"))
    assert world.requested("sbx-2") == ["dead"]


async def test_looping_agent_is_nudged_once_and_judged(world: World) -> None:
    """The nudge passes the real relay to the worker; then ten other calls count as obedience."""
    await world.born("sbx-1")
    await world.receive("sbx-1")
    async with world.relay().running(), world.monitor().running():
        for number in range(6):
            await world.call("sbx-1", str(number))
        await world.until(lambda: world.received)
        await world.until(lambda: world.of("message.acknowledged"))
        for number in range(10):
            await world.call("sbx-1", f"other-{number}", command=f"cat notes-{number}")
        await world.until(lambda: world.of("monitor.intervention_outcome"))
        for number in range(10, 16):
            await world.call("sbx-1", str(number))
        await world.call("sbx-1", "last", command="end")
        await world.born("sbx-2")
    [analysed], [decided] = world.of("monitor.guardian_analysed"), world.of("monitor.intervention_decided")
    [outcome] = world.of("monitor.intervention_outcome")
    assert analysed["data"]["rule"] == decided["data"]["rule"] == "loop"
    assert len(analysed["data"]["evidence"]) >= 3
    assert world.received == [decided["data"]["message"]]
    assert "times in a row" in world.received[0]
    assert decided["data"]["evidence"] == analysed["data"]["evidence"]
    came = {"correlation_id": decided["data"]["correlation_id"], "outcome": "obeyed", "recovered": True}
    assert outcome["data"] == came
    assert [event["data"].get("message_type") for event in world.of("message.queued")] == ["guardian_nudge"]


async def test_undeliverable_nudge_is_reported_and_notified(world: World) -> None:
    """The sandbox has ended when the relay gets the nudge: it is rejected, so undelivered, and a user is notified."""
    await world.born("sbx-1")
    await world.record("sbx-1", SandboxState.TERMINATED)
    async with world.relay().running(), world.monitor().running():
        for number in range(4):
            await world.call("sbx-1", str(number))
        await world.until(lambda: world.of("monitor.notification_published"))
    [outcome], [notified] = world.of("monitor.intervention_outcome"), world.of("monitor.notification_published")
    assert outcome["data"]["outcome"] == "undelivered"
    assert (notified["data"]["kind"], notified["data"]["cause_id"]) == ("intervention_failed", outcome["id"])


async def test_sequence_of_the_monitor_has_no_gap(world: World) -> None:
    """The events of a monitor process have one source, numbered from 1."""
    for number in range(5):
        await world.born(f"sbx-{number}")
    async with world.monitor(dead_after=0.5).running():
        await world.until(lambda: all(world.requested(f"sbx-{number}") for number in range(5)))
    assert [event["sequence"] for event in world.of("monitor.dead_found")] == [1, 2, 3, 4, 5]
    assert len({event["source"] for event in world.of("monitor.dead_found")}) == 1


@pytest.mark.own_broker
async def test_invalid_event_is_only_a_sign_of_life(world: World) -> None:
    """Invalid messages on a worker's own subjects stop nothing; other sandboxes are still watched."""
    await world.born("sbx-1")
    await world.born("sbx-2")
    for payload in (b"", b"garbage", b"{}", b"\xff" * 100):
        await world._workers["sbx-1"].publish(
            "sandherd.v1.event.default.sbx-1.agent.tool_use", payload, msg_id=repr(payload)
        )
    async with world.monitor(dead_after=0.5).running():
        await world.until(lambda: world.requested("sbx-1") and world.requested("sbx-2"))
