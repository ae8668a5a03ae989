"""A spawner changes the records that it has written without reading them, and overwrites no change of another."""

import asyncio
from datetime import UTC, datetime
from functools import partial
from unittest.mock import AsyncMock

import pytest
from prometheus_client import CollectorRegistry

from sandherd.bus.connection import Bus
from sandherd.contracts.commands import SandboxLimits
from sandherd.contracts.events.sandbox import SandboxRunning
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from sandherd.telemetry.meters import Meters
from spawner.live_state import LiveState
from spawner.records.store import Store
from spawner.sandboxes.sandbox_record import SandboxRecord

NOW = datetime(2026, 11, 20, tzinfo=UTC)
KEY = "p1.sbx-1"


def record(sandbox: str = "sbx-1") -> SandboxRecord:
    return SandboxRecord(project="p1", sandbox=sandbox, runtime="process", limits=SandboxLimits(), requested_at=NOW)


def started(bus: Bus) -> Store[SandboxRecord]:
    """The store of a spawner whose watch has not delivered other spawners' writes."""
    return LiveState(bus, Meters(CollectorRegistry())).sandboxes


async def test_change_of_another_replica_is_not_lost(herd: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of another replica, even an unknown one, is not lost: the first write fails, and the next uses it."""
    async with herd.bus(Principal.SPAWNER) as bus:
        mine, other = started(bus), started(bus)
        await mine.create(record())
        load = AsyncMock(side_effect=partial(Store.load, mine))
        monkeypatch.setattr(mine, "load", load)
        await mine.change(KEY, lambda record, _: record.model_copy(update={"unit": "a"}))
        assert not load.called, "its own write is known"
        await other.change(KEY, lambda record, _: record.model_copy(update={"reason": "idle"}))
        held = await mine.change(KEY, lambda record, _: record.model_copy(update={"error": "e"}))
        assert held is not None
        assert (held.record.unit, held.record.reason, held.record.error) == ("a", "idle", "e")
        await other.change(KEY, lambda record, _: record.model_copy(update={"attempt": 7}))
        unchanged = await mine.change(KEY, lambda record, _: record)
        assert unchanged is not None
        assert unchanged.record.attempt == 7, "that nothing is to change is decided by what is stored"


async def test_watched_change_waits_for_a_write_to_the_same_record(herd: Broker) -> None:
    """A watched change is indexed after this store's write to the same record; until then it is not caught up."""
    async with herd.bus(Principal.SPAWNER) as bus:
        live, other = LiveState(bus, Meters(CollectorRegistry())), started(bus)
        following = asyncio.create_task(live.follow())
        try:
            await live.read()
            await live.sandboxes.create(record())
            with live.sandbox_index.writing(KEY):
                held = await other.change(KEY, lambda one, _: one.model_copy(update={"reason": "idle"}))
                assert held is not None
                catching_up = asyncio.create_task(live.catch_up())
                await live.task_index.catch_up(bus)
                await other.create(record("sbx-2"))
                while live.sandbox_index.get("p1.sbx-2") is None:
                    await asyncio.sleep(0)
                assert live.sandbox_index.revision(KEY) != held.revision
                assert not catching_up.done()
            await catching_up
            assert live.sandbox_index.revision(KEY) == held.revision
        finally:
            following.cancel()
            await asyncio.wait([following])


async def test_published_event_is_published_again_after_a_crash_and_stored_once(herd: Broker) -> None:
    """A crashed leader leaves an event in the outbox; the next spawner publishes it with the same id, and clears it."""
    async with herd.bus(Principal.SPAWNER) as bus:
        first = LiveState(bus, Meters(CollectorRegistry()))
        first.is_leader = lambda: True
        made, _ = await first.sandboxes.create(record().with_events(NOW, SandboxRunning(runtime="process")))
        held = await first.flush_sandbox(made)
        assert held.record.outbox == made.record.outbox
        second = LiveState(bus, Meters(CollectorRegistry()))
        stored = await second.sandboxes.load(KEY)
        assert stored is not None
        assert (await second.flush_sandbox(stored)).record.outbox == ()
        info = await bus.js.stream_info("EVENTS", subjects_filter="sandherd.v1.event.p1.sbx-1.>")
        assert info.state.subjects == {"sandherd.v1.event.p1.sbx-1.sandbox.running": 1}


async def test_leaders_next_write_clears_the_outbox(herd: Broker) -> None:
    """The leader's next write to a record clears its outbox; the new event is published, the first one not again."""
    async with herd.bus(Principal.SPAWNER) as bus:
        live = LiveState(bus, Meters(CollectorRegistry()))
        live.is_leader = lambda: True
        made, _ = await live.sandboxes.create(record().with_events(NOW, SandboxRunning(runtime="process")))
        await live.flush_sandbox(made)
        held = await live.change_sandbox(KEY, lambda one: one.with_events(NOW, SandboxRunning(runtime="docker")))
        assert held is not None
        assert len(held.record.outbox) == 1
        assert held.record.outbox[0] not in made.record.outbox
        await live.close()
        stored = await live.sandboxes.load(KEY)
        assert stored is not None
        assert stored.record.outbox == (), "a spawner that stops leaves nothing to be published again"
