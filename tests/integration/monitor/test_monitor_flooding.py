"""A worker that floods the stream, and the monitor that has it ended."""

from typing import Any

from sandherd.contracts.subjects import Principal

World = Any
LARGE = "x" * 100_000


async def test_who_floods_is_ended_and_nobody_else(world: World) -> None:
    """More than the limit within a minute: the event says how much, and the spawner is asked to end that sandbox."""
    async with world.monitor(flood_mb=1).running():
        for sandbox in ("sbx-mad", "sbx-quiet"):
            await world.born(sandbox)
        for _ in range(12):
            await world.by_worker("sbx-mad", "agent.message", content=LARGE, content_length=len(LARGE))
        await world.by_worker("sbx-quiet", "agent.message", content="x", content_length=1)
        await world.until(lambda: world.asked("sbx-mad") == ["flooding"])
        (found,) = world.of("monitor.flood_found", "sbx-mad")
        assert found["data"]["said_bytes"] > 1024 * 1024
        assert world.asked("sbx-quiet") == []


async def test_who_publishes_junk_is_ended_and_nobody_else(world: World) -> None:
    """A few hundred messages of one byte that are no events, with a worker's credential."""
    async with world.monitor(dead_letters_per_minute=10).running():
        for sandbox in ("sbx-mad", "sbx-quiet"):
            await world.born(sandbox)
        async with world.herd.bus(Principal.WORKER, project="default", sandbox="sbx-mad") as worker:
            for number in range(60):
                subject = "sandherd.v1.event.default.sbx-mad.agent.completed"
                await worker.publish(subject, b"1", msg_id=f"junk-{number}")
        await world.until(lambda: world.asked("sbx-mad") == ["flooding"])
        (found,) = world.of("monitor.flood_found", "sbx-mad")
        assert found["data"]["said_junk"] > 50
        assert world.asked("sbx-quiet") == []
