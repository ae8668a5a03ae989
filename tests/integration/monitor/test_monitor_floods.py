"""A worker floods the stream, and the monitor has its sandbox ended.

Invariant: everything that a sandbox publishes, valid or not, counts towards that sandbox's limits, in bytes and in
messages; exceeding one ends that sandbox and no other.
"""

from typing import Any

import pytest

from sandherd.contracts.subjects import Principal

World = Any
LARGE = "x" * 100_000


async def test_flooding_sandbox_is_ended_and_no_other(world: World) -> None:
    """A sandbox over the limit within a minute is ended by a command to the spawner; the event has the size."""
    async with world.monitor(flood_mb=1).running():
        for sandbox in ("sbx-mad", "sbx-quiet"):
            await world.born(sandbox)
        for _ in range(12):
            await world.by_worker("sbx-mad", "agent.message", content=LARGE, content_length=len(LARGE))
        await world.by_worker("sbx-quiet", "agent.message", content="x", content_length=1)
        await world.until(lambda: world.requested("sbx-mad") == ["flooding"])
        (found,) = world.of("monitor.flood_found", "sbx-mad")
        assert found["data"]["said_bytes"] > 1024 * 1024
        assert world.requested("sbx-quiet") == []


@pytest.mark.own_broker
async def test_sandbox_with_invalid_messages_is_ended_and_no_other(world: World) -> None:
    """A few hundred invalid messages of one byte, sent with a worker's credential, end its sandbox and no other."""
    async with world.monitor(dead_letters_per_minute=10).running():
        for sandbox in ("sbx-mad", "sbx-quiet"):
            await world.born(sandbox)
        async with world.herd.bus(Principal.WORKER, project="default", sandbox="sbx-mad") as worker:
            for number in range(60):
                subject = "sandherd.v1.event.default.sbx-mad.agent.completed"
                await worker.publish(subject, b"1", msg_id=f"junk-{number}")
        await world.until(lambda: world.requested("sbx-mad") == ["flooding"])
        (found,) = world.of("monitor.flood_found", "sbx-mad")
        assert found["data"]["said_junk"] > 50
        assert world.requested("sbx-quiet") == []
