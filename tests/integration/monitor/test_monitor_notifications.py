"""The monitor publishes a notification for each recovery and each failed intervention, once."""

from datetime import UTC, datetime
from typing import Any

import pytest

from sandherd.contracts.envelope import wrap
from sandherd.contracts.events.task import TaskRetryScheduled
from tests.polling import eventually

World = Any
NOTIFIED = "monitor.notification_published"


async def retry(world: World, sandbox: str, attempt: int) -> str:
    """End an attempt and retry its task, as the spawner does. Returns the event's id."""
    now = datetime.now(UTC)
    data = TaskRetryScheduled(
        attempt=attempt, not_before=now, error="signal 9", error_type="worker_lost", sandbox=sandbox
    )
    about: dict[str, Any] = {"project": "default", "subject": "task-1", "taskid": "task-1", "time": now}
    event = wrap(data, data.type, source=f"/sandherd/spawner/task-1/{attempt}", sequence=1, **about)
    await world.spawner.publish_event(event)
    return str(event.id)


def causes(world: World) -> list[str]:
    return [event["data"]["cause_id"] for event in world.of(NOTIFIED)]


async def test_recovery_is_notified_once_also_after_a_restart(world: World) -> None:
    """Each retry has one notification; a monitor that is started again publishes only later ones."""
    async with world.monitor().running():
        first = await retry(world, await world.born("sbx-1"), 1)
        await world.until(lambda: causes(world) == [first])
    (event,) = world.of(NOTIFIED)
    assert (event["subject"], event["taskid"], event["data"]["kind"]) == ("sbx-1", "task-1", "recovery")
    assert "worker_lost: signal 9" in event["data"]["message"]
    second = await retry(world, "sbx-2", 2)
    async with world.monitor().running():
        third = await retry(world, "sbx-3", 3)
        await world.until(lambda: {second, third} <= set(causes(world)))
    async with world.monitor().running():
        fourth = await retry(world, "sbx-4", 4)
        await world.until(lambda: fourth in causes(world))
    # Sandboxes of different partitions have no common order.
    assert sorted(causes(world)) == sorted([first, second, third, fourth])


@pytest.mark.parametrize("wanted", ["none", "intervention_failed"])
async def test_unwanted_notifications_are_not_published(world: World, wanted: str) -> None:
    """The setting `notifications` selects none, or only those of failed interventions."""
    await retry(world, await world.born("sbx-1"), 1)
    async with world.monitor(notifications=wanted).running() as service:
        measured = service.registry.get_sample_value
        await eventually(lambda: measured("sandherd_monitor_lag_messages") == 0)
        # Measured after notifications were decided, at the end of that round or of a later one.
        await world.born("sbx-2")
        await eventually(lambda: measured("sandherd_watched_sandboxes") == 2)
        assert causes(world) == []
