"""Admission, on a real broker: however many replicas make sandboxes at once, no more live than may."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sandherd.bus.connection import Bus
from sandherd.contracts.specs import Limits
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from sandherd.telemetry.meters import Meters
from spawner.live import Live
from spawner.sandboxes.admission import Admission
from spawner.sandboxes.record import SandboxRecord
from spawner.tasks.queueing import follow
from tests.integration.spawner.following import following
from tests.patience import PATIENCE

NOW = datetime(2026, 11, 20, tzinfo=UTC)
ALLOWED = 5


class DyingError(Exception):
    """A replica dies here."""


class Replica:
    """What of a spawner makes sandboxes."""

    def __init__(self, bus: Bus, settings: Any, patience: float) -> None:
        self.live = Live(bus, Meters(CollectorRegistry()), lambda: NOW)
        self.admission = Admission(bus, self.live, follow(self.live, settings).room.lacking, patience=patience)

    async def make(self, name: str) -> str | None:
        """Make one, or tell why there is no room."""
        record = record_of(name)
        async with self.admission.admit(record) as lacking:
            if lacking is None:
                await self.live.sandboxes.create(record)
            return lacking

    async def die(self, record: SandboxRecord, *, made: bool) -> None:
        """Be admitted, and die before or after the record is made."""
        async with self.admission.admit(record):
            if made:
                await self.live.sandboxes.create(record)
            raise DyingError


def record_of(name: str) -> SandboxRecord:
    return SandboxRecord(project="p1", sandbox=name, runtime="process", limits=Limits(), requested_at=NOW)


Replicas = Callable[..., Any]


@pytest.fixture
def replicas(herd: Broker) -> Replicas:
    """So many spawners, each with a connection and a knowledge of its own."""

    @asynccontextmanager
    async def opened(number: int, *, patience: float = PATIENCE) -> AsyncIterator[list[Replica]]:
        settings = herd.settings(Principal.SPAWNER, max_sandboxes=ALLOWED)
        async with AsyncExitStack() as stack:
            made = []
            for _ in range(number):
                bus = await stack.enter_async_context(herd.bus(Principal.SPAWNER))
                made.append(Replica(bus, settings, patience))
                await stack.enter_async_context(following(made[-1].live, bus))
            yield made

    return opened


async def test_a_crowd_gets_no_more_places_than_there_are(replicas: Replicas) -> None:
    """Three replicas are asked for thirty sandboxes in one moment; as many are made as may live, and none too few."""
    async with replicas(3) as spawners:
        names = [f"sbx-{number}" for number in range(30)]
        told = await asyncio.gather(*(spawners[number % 3].make(name) for number, name in enumerate(names)))
        assert told.count(None) == ALLOWED
        assert {text for text in told if text} == {f"{ALLOWED} of {ALLOWED} sandboxes live"}
        await spawners[0].live.catch_up()
        assert len(spawners[0].live.sandbox_index) == ALLOWED


async def test_who_dies_with_a_place_keeps_it_only_a_while(replicas: Replicas) -> None:
    """Admitted, and dead before its sandbox was recorded: the others wait, then all places are still to be had."""
    async with replicas(2, patience=0.2) as (first, second):
        with pytest.raises(DyingError):
            await first.die(record_of("sbx-never"), made=False)
        told = [await second.make(f"sbx-{number}") for number in range(ALLOWED + 1)]
        assert told == [None] * ALLOWED + [f"{ALLOWED} of {ALLOWED} sandboxes live"]


async def test_a_replica_goes_on_after_a_making_that_failed(replicas: Replicas) -> None:
    """Its next admission takes nothing for granted, and counts what was made all the same."""
    async with replicas(1, patience=0.2) as (only,):
        with pytest.raises(DyingError):
            await only.die(record_of("sbx-half"), made=True)
        told = [await only.make(f"sbx-{number}") for number in range(ALLOWED)]
        assert told[-2:] == [None, f"{ALLOWED} of {ALLOWED} sandboxes live"]
