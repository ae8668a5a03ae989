"""Admission on a real broker: concurrent replicas never exceed the limit of sandboxes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sandherd.bus.connection import Bus
from sandherd.contracts.specs import SandboxLimits
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from sandherd.telemetry.meters import Meters
from spawner.live_state import LiveState
from spawner.sandboxes.admission import Admission
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.tasks.queue_updates import follow
from tests.integration.spawner.bucket_follower import following
from tests.patience import PATIENCE

NOW = datetime(2026, 11, 20, tzinfo=UTC)
ALLOWED = 5


class DyingError(Exception):
    """The replica was killed here."""


class Replica:
    """The parts of a spawner that create sandboxes."""

    def __init__(self, bus: Bus, settings: Any, patience: float) -> None:
        self.live = LiveState(bus, Meters(CollectorRegistry()), lambda: NOW)
        self.admission = Admission(
            bus, self.live, follow(self.live, settings).capacity.exhausted_limit, patience=patience
        )

    async def make(self, name: str) -> str | None:
        """Create a sandbox, or return why there is no capacity."""
        record = record_of(name)
        async with self.admission.admit(record) as lacking:
            if lacking is None:
                await self.live.sandboxes.create(record)
            return lacking

    async def die(self, record: SandboxRecord, *, made: bool) -> None:
        """Admit a sandbox, and be killed before or after its record is created."""
        async with self.admission.admit(record):
            if made:
                await self.live.sandboxes.create(record)
            raise DyingError


def record_of(name: str) -> SandboxRecord:
    return SandboxRecord(project="p1", sandbox=name, runtime="process", limits=SandboxLimits(), requested_at=NOW)


Replicas = Callable[..., Any]


@pytest.fixture
def replicas(herd: Broker) -> Replicas:
    """This number of spawners, each with its own connection and state."""

    @asynccontextmanager
    async def opened(number: int, *, patience: float = PATIENCE) -> AsyncIterator[list[Replica]]:
        settings = herd.settings(Principal.SPAWNER, max_sandboxes=ALLOWED)
        async with AsyncExitStack() as stack:
            made = []
            for _ in range(number):
                bus = await stack.enter_async_context(herd.bus(Principal.SPAWNER))
                made.append(Replica(bus, settings, patience))
                await stack.enter_async_context(following(made[-1].live))
            yield made

    return opened


async def test_concurrent_creations_do_not_exceed_the_limit(replicas: Replicas) -> None:
    """Three replicas with thirty requests at once create exactly the permitted number of sandboxes."""
    async with replicas(3) as spawners:
        names = [f"sbx-{number}" for number in range(30)]
        results = await asyncio.gather(*(spawners[number % 3].make(name) for number, name in enumerate(names)))
        assert results.count(None) == ALLOWED
        assert {text for text in results if text} == {f"{ALLOWED} of {ALLOWED} sandboxes live"}
        await spawners[0].live.catch_up()
        assert len(spawners[0].live.sandbox_index) == ALLOWED


async def test_capacity_of_a_dead_replica_is_freed(replicas: Replicas) -> None:
    """An admission without a recorded sandbox blocks others for a while; then all capacity is available again."""
    async with replicas(2, patience=0.2) as (first, second):
        with pytest.raises(DyingError):
            await first.die(record_of("sbx-never"), made=False)
        results = [await second.make(f"sbx-{number}") for number in range(ALLOWED + 1)]
        assert results == [None] * ALLOWED + [f"{ALLOWED} of {ALLOWED} sandboxes live"]


async def test_replica_continues_after_a_failed_creation(replicas: Replicas) -> None:
    """After a failed creation the next admission counts again, including sandboxes that the failed attempt created."""
    async with replicas(1, patience=0.2) as (only,):
        with pytest.raises(DyingError):
            await only.die(record_of("sbx-half"), made=True)
        results = [await only.make(f"sbx-{number}") for number in range(ALLOWED)]
        assert results[-2:] == [None, f"{ALLOWED} of {ALLOWED} sandboxes live"]
