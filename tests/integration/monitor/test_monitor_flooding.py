"""A worker that floods the stream, and the monitor that has it ended."""

from typing import Any

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
