"""What the monitor makes of pauses, of more time, and of sandboxes without a task, on a real broker."""

from datetime import UTC, datetime, timedelta
from typing import Any

from sandherd.contracts.states import SandboxState
from tests.integration.monitor.conftest import DEAD_AFTER

World = Any


async def test_a_paused_one_is_left_alone_from_its_record_on_and_found_when_it_has_gone_on(world: World) -> None:
    """Before its event is heard the record says it; silence is counted anew from the resumption."""
    await world.born("sbx-event")
    await world.by_spawner("sbx-event", "sandbox.paused")
    await world.born("sbx-record")
    await world.record("sbx-record", SandboxState.PAUSED)
    await world.born("sbx-other")
    async with world.monitor(dead_after=0.5).running():
        await world.until(lambda: world.asked("sbx-other") == ["dead"])
        assert world.asked("sbx-event") == world.asked("sbx-record") == []
        await world.by_spawner("sbx-event", "sandbox.resumed")
        await world.record("sbx-record")
        await world.until(lambda: world.asked("sbx-event") and world.asked("sbx-record"))
    assert world.asked("sbx-event") == world.asked("sbx-record") == ["dead"]


async def test_one_without_a_task_is_never_idle_and_can_be_dead(world: World) -> None:
    """It waits for whoever asked for it as long as it lives; one that falls silent is ended like any other."""
    for sandbox in ("sbx-waits", "sbx-silent"):
        await world.record(sandbox, task=None)
        await world.by_spawner(sandbox, "sandbox.requested", taskid=None)
    await world.born("sbx-idle")
    limits = {"dead_after": DEAD_AFTER, "idle_after": 0.5}
    async with world.beating("sbx-waits", taskid=None), world.beating("sbx-idle"), world.monitor(**limits).running():
        await world.until(lambda: world.asked("sbx-idle") == ["idle"] and world.asked("sbx-silent") == ["dead"])
    assert world.asked("sbx-waits") == []


async def test_one_that_was_never_made_is_ended_although_its_record_says_little(world: World) -> None:
    """The spawner leaves out of a record what is at its default, as the first state."""
    await world.record("sbx-1", SandboxState.REQUESTED)
    await world.by_spawner("sbx-1", "sandbox.requested")
    async with world.monitor(dead_after=0.5).running():
        await world.until(lambda: world.asked("sbx-1") == ["dead"])


async def test_one_that_may_live_longer_than_others_is_not_too_old(world: World) -> None:
    """Its spawner has named its end; the greatest age is for those of which nothing is known."""
    later = datetime.now(UTC) + timedelta(hours=1)
    await world.born("sbx-extended")
    await world.by_spawner("sbx-extended", "sandbox.extended", expires_at=later)
    await world.born("sbx-old")
    async with world.monitor(max_age=0.5).running():
        await world.until(lambda: world.asked("sbx-old") == ["too_old"])
    assert world.asked("sbx-extended") == []
