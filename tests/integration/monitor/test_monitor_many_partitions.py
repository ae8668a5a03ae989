"""The maximum number of partitions: two replicas share them, and one is killed."""

import signal
from typing import Any

import pytest

from tests.integration.monitor.test_monitor_shares import (
    check_decided_once,
    decided,
    loop,
    one_of_each,
    replica_process,
    shared,
)

World = Any
COUNT = 64
WATCHED = 16


@pytest.mark.faults
@pytest.mark.long
async def test_successor_with_64_partitions_loses_and_repeats_nothing(world: World) -> None:
    """In every fourth partition some sandboxes are decided before the kill of a replica, and some are due then."""
    before, after = (one_of_each(name, COUNT)[:: COUNT // WATCHED] for name in ("before", "after"))
    for sandbox in (*before, *after):
        await world.born(sandbox)
    async with (
        world.relay().running(),
        world.monitor(monitor_partitions=COUNT).running() as survivor,
        replica_process(world, partitions=COUNT) as process,
    ):
        await shared([survivor], COUNT // 2)
        await loop(world, before)
        await decided(world, before)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await loop(world, after)
        await shared([survivor], COUNT)
        await decided(world, after)
        assert survivor.health.problems() == {}
        assert len({event["source"] for event in world.of("monitor.intervention_decided")}) == 2
        await check_decided_once(world, [*before, *after])
