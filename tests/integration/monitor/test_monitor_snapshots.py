"""The snapshot in its bucket, and a stream that lacks the events after the snapshot."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from structlog.testing import capture_logs

from monitor.actions import Actions
from monitor.event_reader import EventReader
from monitor.facts import ObservedEvent
from monitor.herd import Herd
from monitor.main import compose
from monitor.partition_plan import PartitionId
from monitor.replica_watch import ReplicaWatch
from monitor.rule_set import ALL
from monitor.snapshot_store import Snapshots, SnapshotStore
from sandherd.bus.connection import Bus, ConnectionIdentity
from sandherd.bus.identity import Registrar, write_secret
from sandherd.bus.lease import Lease
from sandherd.bus.publisher import EventPublisher
from sandherd.concurrency import cancel_and_wait
from sandherd.contracts.subjects import Principal
from tests.patience import PATIENCE
from tests.polling import eventually

World = Any
NOW = datetime(2026, 11, 20, tzinfo=UTC)


def store(bus: Bus) -> SnapshotStore:
    return Snapshots(bus, ALL).of(PartitionId(1, 0))


def herd_of(count: int, position: int) -> Herd:
    herd = Herd()
    for number in range(count):
        herd.fold(ObservedEvent("default", f"sbx-{number}", "agent.started", number + 1, NOW))
    herd.position = position
    return herd


async def test_last_saved_snapshot_is_restored(world: World) -> None:
    """Three saves use two sets of chunks in turn, and the last one is restored."""
    async with world.herd.bus(Principal.MONITOR) as bus:
        keeping = store(bus)
        assert (await keeping.restore()).live == {}
        for count in (1, 4000, 7):
            await keeping.save(herd_of(count, count), fence=3)
        restored = await store(bus).restore()
    assert restored.live == herd_of(7, 7).live
    assert restored.position == keeping.position == 7


async def test_paused_holder_does_not_overwrite_its_successor(world: World) -> None:
    """After both have restored the same snapshot and the successor has saved, the old holder's save is refused."""
    async with world.herd.bus(Principal.MONITOR) as bus:
        await store(bus).save(herd_of(1, 1), fence=1)
        old, successor = store(bus), store(bus)
        await old.restore()
        await successor.restore()
        await successor.save(herd_of(3, 30), fence=2)
        await old.save(herd_of(2, 20), fence=1)
        restored = await store(bus).restore()
    assert restored.position == 30
    assert old.position == 1


@pytest.mark.own_broker
async def test_incomplete_snapshot_is_skipped(world: World) -> None:
    """Without a complete snapshot the stream is read from its first event."""
    async with world.herd.bus(Principal.MONITOR) as bus:
        await store(bus).save(herd_of(2, 9), fence=1)
        await bus.publish("$KV.monitor.watch.1.0.piece.1-a.0", b"x", msg_id="x")
        restored = await store(bus).restore()
    assert (restored.position, restored.live) == (0, {})


async def test_monitor_that_is_stopped_saves_all_that_it_has_read(world: World) -> None:
    """The last event that it has read is in the snapshot: its successor reads none of them again."""
    await world.born("sbx-1")
    async with world.monitor(monitor_partitions=1).running() as service:
        await eventually(lambda: service.registry.get_sample_value("sandherd_watched_sandboxes") == 1)
    async with world.herd.bus(Principal.MONITOR) as bus:
        restored = await store(bus).restore()
    assert [key[1] for key in restored.live] == ["sbx-1"]


@pytest.mark.own_broker
async def test_watch_waits_for_an_unavailable_snapshot(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the broker down after it got the lease, the watch does not end, and later continues from the snapshot."""
    monkeypatch.setattr(Lease, "check", lambda _lease: None)  # the lease's lifetime is not the claim
    service = compose(world.herd.settings(Principal.MONITOR, check_interval=0.1))
    async with world.herd.bus(Principal.MONITOR) as bus:
        await store(bus).save(herd_of(3, 30), fence=1)
        await world.herd.kill()
        actions = Actions(bus, EventPublisher(bus, Principal.MONITOR))
        watch = ReplicaWatch(bus, 1, ALL, actions=actions, meters=service.meters)
        with capture_logs() as lines:
            watching = asyncio.create_task(watch.hold(PartitionId(1, 0), Lease(bus, "monitor.watch.1.0", "test")))
            await logged(lines, watching, event="snapshot unavailable, retrying")
            await world.herd.restart()
            await logged(lines, watching, event="snapshot restored", position=30, sandboxes=3)
        await cancel_and_wait([watching])


async def logged(lines: list[Any], watching: "asyncio.Task[None]", **line: Any) -> None:
    """Wait for a line in the log, as long as the watch runs."""
    async with asyncio.timeout(PATIENCE):
        while not any(line.items() <= found.items() for found in lines):
            assert not watching.done(), watching
            await asyncio.sleep(0.05)


@pytest.mark.own_broker
async def test_stream_without_the_next_position_is_read_from_its_first(world: World) -> None:
    """If positions 1 to 5 are deleted, a snapshot at 2 continues with 6."""
    for number in range(8):
        await world.by_spawner(f"sbx-{number}", "sandbox.requested")
    path = world.herd.home / "creds" / "test.creds"
    write_secret(path, Registrar(world.herd.identity).mint_stream_admin())
    async with Bus.open(
        world.herd.url, name="t", identity=ConnectionIdentity.file(path), inbox="_INBOX_provisioner"
    ) as admin:
        await admin.js.purge_stream("EVENTS", seq=6)
    async with world.herd.bus(Principal.MONITOR) as bus:
        reader = EventReader(bus)
        assert await reader.start(2) == 5
        got: list[int] = []
        while len(got) < 3:
            got += [event.stream_sequence for event in (await reader.next_batch()).events]
        bounds = await reader.bounds()
        await reader.stop()
    assert got == [6, 7, 8]
    assert (bounds.first, bounds.last) == (6, 8)
    assert abs((datetime.now(UTC) - bounds.requested_at).total_seconds()) < 60
