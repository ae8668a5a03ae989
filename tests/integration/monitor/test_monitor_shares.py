"""Several replicas of the monitor on a real broker share the sandboxes; each sandbox is watched by exactly one."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from monitor.event_decoder import read
from monitor.event_reader import EventReader
from monitor.herd import Herd
from monitor.partition_leases import PartitionShares
from monitor.partition_plan import UNDIVIDED, PartitionId, partition_of
from monitor.rule_set import ALL
from monitor.snapshot_store import Snapshots
from sandherd.bus.connection import Bus, ConnectionIdentity
from sandherd.bus.identity import Registrar, write_secret
from sandherd.bus.lease import Lease
from sandherd.concurrency import cancel_and_wait
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests.monitor import ShowSandbox
from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service
from tests.polling import eventually

World = Any
COUNT = 8


def one_of_each(prefix: str, count: int = COUNT) -> list[str]:
    """The names of sandboxes, one in each partition."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < count:
        found.setdefault(partition_of("default", f"sbx-{prefix}-{number}", count), f"sbx-{prefix}-{number}")
        number += 1
    return [found[place] for place in range(count)]


def held(*replicas: Service) -> list[int]:
    return [int(one.registry.get_sample_value("sandherd_monitor_partitions_held") or 0) for one in replicas]


async def shared(replicas: list[Service], *shares: int) -> None:
    await eventually(lambda: sorted(held(*replicas)) == sorted(shares), lambda: f"{held(*replicas)} for {shares}")


async def loop(world: World, sandboxes: list[str], first: int = 0) -> None:
    """Repeat one call in each sandbox as often as the rule `loop` needs."""
    for sandbox in sandboxes:
        for number in range(first, first + 4):
            await world.call(sandbox, f"c{number}")


async def decided(world: World, sandboxes: list[str]) -> None:
    await world.until(lambda: all(world.of("monitor.intervention_decided", sandbox) for sandbox in sandboxes))


def messages(world: World, event_type: str) -> list[str]:
    return sorted(event["data"]["message_id"] for event in world.of(event_type))


async def check_decided_once(world: World, sandboxes: list[str]) -> None:
    """Check that each has one intervention, whose message is sent once, after the decision."""
    await world.until(
        lambda: {*messages(world, "monitor.intervention_decided")} <= {*messages(world, "message.queued")}
    )
    found = world.of("monitor.intervention_decided")
    assert sorted(event["subject"] for event in found) == sorted(sandboxes)
    assert len({event["data"]["correlation_id"] for event in found}) == len(sandboxes)
    assert messages(world, "message.queued") == messages(world, "monitor.intervention_decided")


@asynccontextmanager
async def replica_process(
    world: World, stderr: int | None = None, partitions: int = COUNT
) -> AsyncIterator[asyncio.subprocess.Process]:
    settings = world.herd.settings(Principal.MONITOR)
    environment = os.environ | {
        "NATS_URL": settings.nats_url,
        "SANDHERD_CREDENTIALS": str(settings.credentials),
        "SANDHERD_DEAD_AFTER": "3600",
        "SANDHERD_CHECK_INTERVAL": "0.2",
        "SANDHERD_MONITOR_PARTITIONS": str(partitions),
    }
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "monitor.main", env=environment, stderr=stderr)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        await process.wait()


async def test_replicas_share_and_a_new_one_gets_its_part(world: World) -> None:
    """Only the replica that watches a sandbox replies for it and counts it; no intervention is lost or repeated."""
    first, second = one_of_each("first"), one_of_each("second")
    for sandbox in (*first, *second):
        await world.born(sandbox)
    async with world.relay().running(), world.monitor().running() as one, world.monitor().running() as other:
        await shared([one, other], 4, 4)
        await loop(world, first)
        await decided(world, first)
        for sandbox in first:
            view = await world.client.ask(ShowSandbox(sandbox=sandbox), "default")
            assert (view.sandbox, len(view.interventions)) == (sandbox, 1)
        async with world.monitor().running() as new:
            moving = asyncio.create_task(loop(world, second))
            await shared([one, other, new], 3, 3, 2)
            await moving
            await decided(world, second)
            watched = [one.registry, other.registry, new.registry]
            await eventually(
                lambda: sum(found.get_sample_value("sandherd_watched_sandboxes") or 0 for found in watched) == 16
            )
        await shared([one, other], 4, 4)
        assert [one.health.problems(), other.health.problems()] == [{}, {}]
        await check_decided_once(world, [*first, *second])


@pytest.mark.faults
async def test_successor_of_a_killed_replica_loses_and_repeats_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interventions that were decided before the kill are not repeated, and those due afterwards are made.

    The successor reads few events at a time, so that it finds a pattern before it finds the intervention.
    """
    monkeypatch.setattr("monitor.event_reader._BATCH_EVENTS", 3)
    before, after = one_of_each("before"), one_of_each("after")
    for sandbox in (*before, *after):
        await world.born(sandbox)
    async with world.relay().running(), world.monitor().running() as survivor, replica_process(world) as process:
        await shared([survivor], 4)
        await loop(world, before)
        await decided(world, before)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await loop(world, after)
        await shared([survivor], 8)
        await decided(world, after)
        await loop(world, before, first=4)
        await world.born("sbx-last")
        await loop(world, ["sbx-last"])
        await decided(world, ["sbx-last"])
        sources = {event["source"] for event in world.of("monitor.intervention_decided")}
        assert len(sources) == 2
        await check_decided_once(world, [*before, *after, "sbx-last"])


@pytest.mark.faults
async def test_replica_that_was_paused_does_not_act(world: World) -> None:
    """A replica that continues has events that require an action in its socket, but others hold its leases."""
    before, after = one_of_each("before"), one_of_each("after")
    for sandbox in (*before, *after):
        await world.born(sandbox)
    async with (
        world.relay().running(),
        replica_process(world, stderr=asyncio.subprocess.PIPE) as process,
        world.herd.bus(Principal.MONITOR) as bus,
    ):
        lines = Lines(process)
        await loop(world, before)
        await decided(world, before)
        process.send_signal(signal.SIGSTOP)
        leases = [Lease(bus, PartitionId(COUNT, number).lease, "another replica") for number in range(COUNT)]
        holding = [asyncio.create_task(lease.run()) for lease in leases]
        await asyncio.gather(*(lease.wait_held() for lease in leases))
        await loop(world, after)
        process.send_signal(signal.SIGCONT)
        await lines.until("lease lost, watch stopped", COUNT)
        assert {event["subject"] for event in world.of("monitor.intervention_decided")} == {*before}
        await cancel_and_wait(holding)
        await decided(world, after)
        await lines.stop()
        await check_decided_once(world, [*before, *after])


class Lines:
    """The log lines of a process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._events: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self._events.append(json.loads(line)["event"])

    async def until(self, event: str, times: int) -> None:
        await eventually(lambda: self._events.count(event) >= times, lambda: f"{event}: {self._events}")

    async def stop(self) -> None:
        await cancel_and_wait([self._reading])


async def test_snapshot_of_a_monitor_without_partitions_is_divided(world: World) -> None:
    """The snapshot is divided, also if the number of partitions changes later: its events are not in the stream."""
    sandboxes = one_of_each("old", 3)
    for sandbox in sandboxes:
        await world.born(sandbox)
        for number in range(3):
            await world.call(sandbox, f"c{number}")
    async with world.herd.bus(Principal.MONITOR) as bus:
        await store_undivided(bus)
        await purge_events(world)
        async with world.monitor(monitor_partitions=8).running() as service:
            await loop(world, sandboxes, first=3)
            await decided(world, sandboxes)
            await shared([service], 8)
        async with world.monitor(monitor_partitions=8).running() as service:
            await shared([service], 8)
        stored = await Snapshots(bus, ALL).manifests()
        assert {place.total for place in stored} == {8}
        await purge_events(world)
        async with world.monitor(monitor_partitions=3).running() as service:
            await loop(world, sandboxes, first=8)
            await world.born("sbx-last")
            await loop(world, ["sbx-last"])
            await decided(world, ["sbx-last"])
            await shared([service], 3)
            view = await world.client.ask(ShowSandbox(sandbox=sandboxes[0]), "default")
            assert [one.number for one in view.interventions] == [1]
    found = world.of("monitor.intervention_decided")
    assert sorted(event["subject"] for event in found) == sorted([*sandboxes, "sbx-last"])


async def store_undivided(bus: Bus) -> None:
    """Store what the last version stores when it ends: one snapshot of all sandboxes."""
    herd, reader = Herd(), EventReader(bus)
    last = (await reader.bounds()).last
    while herd.position < last:
        batch = await reader.read_from(herd.position + 1, lambda _subject: True)
        assert batch is not None
        for event in batch.events:
            seen = read(event.subject, event.data, event.stream_sequence, event.at)
            if seen is not None:
                herd.fold(seen)
        herd.position = batch.position
    await Snapshots(bus, ALL).of(UNDIVIDED).save(herd, fence=1)


async def purge_events(world: World) -> None:
    path = world.herd.home / "creds" / "test.creds"
    write_secret(path, Registrar(world.herd.identity).mint_stream_admin())
    async with Bus.open(
        world.herd.url, name="t", identity=ConnectionIdentity.file(path), inbox="_INBOX_provisioner"
    ) as admin:
        await admin.js.purge_stream("EVENTS")


async def test_request_for_a_partition_without_a_holder_is_refused(world: World) -> None:
    """The request is refused only if no replica holds the partition, or may hold it; else that replica replies."""

    async def hold(place: PartitionId, lease: Lease) -> None:
        raise AssertionError((place, lease))

    async with world.herd.bus(Principal.MONITOR) as bus:
        shares = PartitionShares(bus, "me", COUNT, hold)
        with pytest.raises(ContractError, match="no replica of the monitor watches partition 3 of 8") as refused:
            await shares.check_unwatched(3)
        assert refused.value.problem.code is Code.BUSY
        other = Lease(bus, PartitionId(COUNT, 3).lease, "other", ttl=60)
        holding = asyncio.create_task(other.run())
        await other.wait_held()
        await shares.check_unwatched(3)
        await cancel_and_wait([holding])
        old = Lease(bus, "monitor.watch", "a replica without partitions", ttl=60)
        holding = asyncio.create_task(old.run())
        await old.wait_held()
        await shares.check_unwatched(3)
        await cancel_and_wait([holding])


async def test_partitions_wait_for_a_monitor_without_them(world: World) -> None:
    """A new version that runs beside the old one is ready, and takes partitions when the old lease is free."""
    async with world.herd.bus(Principal.MONITOR) as bus:
        old = Lease(bus, "monitor.watch", "01a2-old", ttl=60)
        holding = asyncio.create_task(old.run())
        await old.wait_held()
        async with world.monitor().running() as service:
            await eventually(lambda: "partitions" in service.health.warnings())
            assert "a replica with no partitions still runs" in service.health.warnings()["partitions"]
            assert (held(service), service.health.problems()) == ([0], {})
            await cancel_and_wait([holding])
            await shared([service], 8)
