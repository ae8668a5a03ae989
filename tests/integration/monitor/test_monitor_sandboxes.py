"""The monitor with paused and extended sandboxes, and those without a task, on a real broker."""

from datetime import UTC, datetime, timedelta
from typing import Any

from sandherd.contracts.states import SandboxState
from tests.integration.monitor.conftest import DEAD_AFTER

World = Any


async def test_paused_sandbox_is_ignored_until_it_resumes(world: World) -> None:
    """A record of the pause counts before its event is read; silence is counted from the resumption on."""
    await world.born("sbx-event")
    await world.by_spawner("sbx-event", "sandbox.paused")
    await world.born("sbx-record")
    await world.record("sbx-record", SandboxState.PAUSED)
    await world.born("sbx-other")
    async with world.monitor(dead_after=0.5).running():
        await world.until(lambda: world.requested("sbx-other") == ["dead"])
        assert world.requested("sbx-event") == world.requested("sbx-record") == []
        await world.by_spawner("sbx-event", "sandbox.resumed")
        await world.record("sbx-record")
        await world.until(lambda: world.requested("sbx-event") and world.requested("sbx-record"))
    assert world.requested("sbx-event") == world.requested("sbx-record") == ["dead"]


async def test_sandbox_without_a_task_is_never_idle_and_can_be_dead(world: World) -> None:
    """A silent sandbox without a task is ended like any other, but never as idle."""
    for sandbox in ("sbx-waits", "sbx-silent"):
        await world.record(sandbox, task=None)
        await world.by_spawner(sandbox, "sandbox.requested", taskid=None)
    await world.born("sbx-idle")
    limits = {"dead_after": DEAD_AFTER, "idle_after": 0.5}
    async with world.beating("sbx-waits", taskid=None), world.beating("sbx-idle"), world.monitor(**limits).running():
        await world.until(lambda: world.requested("sbx-idle") == ["idle"] and world.requested("sbx-silent") == ["dead"])
    assert world.requested("sbx-waits") == []


async def test_sandbox_never_created_is_ended_despite_a_sparse_record(world: World) -> None:
    """The spawner omits fields at their default from a record, such as the first state."""
    await world.record("sbx-1", SandboxState.REQUESTED)
    await world.by_spawner("sbx-1", "sandbox.requested")
    async with world.monitor(dead_after=0.5).running():
        await world.until(lambda: world.requested("sbx-1") == ["dead"])


async def test_extended_sandbox_is_not_too_old(world: World) -> None:
    """The spawner has set its end; the maximum age is for sandboxes without one."""
    later = datetime.now(UTC) + timedelta(hours=1)
    await world.born("sbx-extended")
    await world.by_spawner("sbx-extended", "sandbox.extended", expires_at=later)
    await world.born("sbx-old")
    async with world.monitor(max_age=0.5).running():
        await world.until(lambda: world.requested("sbx-old") == ["too_old"])
    assert world.requested("sbx-extended") == []
