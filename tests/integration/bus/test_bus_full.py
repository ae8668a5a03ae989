"""A stream that is full: what its publishers do, and that nothing is lost, doubled or taken for hopeless."""

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import replace

import pytest

from sandherd.bus.connection import Bus, StreamFullError
from sandherd.bus.fullness import Fullness, read_fill
from sandherd.bus.provision import provision
from sandherd.bus.publishing import Speaker
from sandherd.bus.stream_configs import stream_config
from sandherd.contracts.events.monitor import MonitorDeadFound
from sandherd.contracts.streams import BY_STREAM
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE

P = Principal
FLOOD = "sandherd.v1.event.p1.sbx-1.agent.message"
LARGE = b"x" * 100_000
SUBJECTS = {
    P.WORKER: "sandherd.v1.event.p1.sbx-2.agent.message",
    P.SPAWNER: "sandherd.v1.event.p1.task-1.task.submitted",
    P.MESSAGE_RELAY: "sandherd.v1.event.p1.sbx-1.message.queued",
    P.MONITOR: "sandherd.v1.event.p1.sbx-1.monitor.dead_found",
}


async def make_small(herd: Broker, stream: str = "EVENTS", max_bytes: int = 1024 * 1024) -> None:
    async with herd.provisioner() as jetstream:
        await jetstream.update_stream(stream_config(replace(BY_STREAM[stream], max_bytes=max_bytes)))


async def fill_up(bus: Bus) -> int:
    """Publish until the stream refuses, down to small messages; how many of the large ones it took."""
    taken = 0
    for size in (len(LARGE), 1000, 1):
        with suppress(StreamFullError):
            while True:
                await bus.publish_stored(FLOOD, LARGE[:size], msg_id=f"flood-{size}-{taken}", while_full=False)
                taken += 1
    return taken


async def test_every_publisher_is_told_that_it_is_full_and_may_try_again(herd: Broker) -> None:
    """Workers and services get an error that means `again`; none of what was taken before is pushed out by them."""
    await make_small(herd)
    async with AsyncExitStack() as stack:
        taken = await fill_up(await stack.enter_async_context(herd.bus(P.WORKER, project="p1", sandbox="sbx-1")))
        for principal, subject in SUBJECTS.items():
            bus = await stack.enter_async_context(herd.bus(principal, project="p1", sandbox="sbx-2"))
            with pytest.raises(StreamFullError):
                await bus.publish(subject, LARGE, msg_id=f"full-{principal}")
        async with herd.bus(P.EVENT_INGEST) as reader:
            fill = await read_fill(reader, "EVENTS")
        assert (fill.first, fill.messages) == (1, taken)


async def test_what_was_refused_is_stored_once_when_there_is_room(herd: Broker) -> None:
    """A refusal is not remembered as the message: the same id is taken later, and a third time it is a duplicate."""
    await make_small(herd)
    async with herd.bus(P.WORKER, project="p1", sandbox="sbx-1") as bus, herd.provisioner() as jetstream:
        await fill_up(bus)
        with pytest.raises(StreamFullError):
            await bus.publish(FLOOD, LARGE, msg_id="late")
        await jetstream.purge_stream("EVENTS", seq=5)
        assert not (await bus.publish(FLOOD, LARGE, msg_id="late")).duplicate
        assert (await bus.publish(FLOOD, LARGE, msg_id="late")).duplicate


async def test_who_must_be_heard_speaks_on_until_there_is_room(herd: Broker) -> None:
    """An event that a service says is said again and again, and its number is not used up by the refusals."""
    await make_small(herd)
    async with (
        herd.bus(P.WORKER, project="p1", sandbox="sbx-1") as flooder,
        herd.bus(P.MONITOR) as bus,
        herd.provisioner() as jetstream,
    ):
        await fill_up(flooder)
        refused = asyncio.Event()
        publish = bus.publish

        async def watched(*args: object, **named: object) -> object:
            try:
                return await publish(*args, **named)  # type: ignore[arg-type]  # watched
            except StreamFullError:
                refused.set()
                raise

        bus.publish = watched  # type: ignore[method-assign, assignment]  # watched
        speaker = Speaker(bus, "monitor")
        found = MonitorDeadFound(rule="dead", age_seconds=1, limit_seconds=1)
        saying = asyncio.create_task(speaker.say(found, project="p1", entity="sbx-1"))
        await refused.wait()
        assert not saying.done()
        await jetstream.purge_stream("EVENTS", seq=5)
        assert (await saying).sequence == 1
        assert (await speaker.say(found, project="p1", entity="sbx-1")).sequence == 2


async def test_a_stream_of_the_version_before_no_longer_lets_the_oldest_go(herd: Broker) -> None:
    """EVENTS of an older set-up, which dropped the oldest, refuses when it is full after the upgrade, and keeps all."""
    async with herd.provisioner() as jetstream:
        old = stream_config(replace(BY_STREAM["EVENTS"], refuse_when_full=False))
        await jetstream.update_stream(old)
        async with herd.bus(P.MONITOR) as bus:
            await bus.publish(SUBJECTS[P.MONITOR], b"{}", msg_id="1")
            await provision(jetstream)
            fill = await read_fill(bus, "EVENTS")
            assert (fill.refuses, fill.messages) == (True, 1)


async def test_how_full_a_stream_is_is_measured_by_its_name(herd: Broker) -> None:
    """Each stream of a service has its ratio under its own name, and one that will refuse is told to people."""
    from prometheus_client import CollectorRegistry

    from sandherd.telemetry.meters import Meters

    await make_small(herd)
    registry = CollectorRegistry()
    fullness = Fullness(("EVENTS", "OUTPUT", "KV_tasks"), Meters(registry))
    async with herd.bus(P.WORKER, project="p1", sandbox="sbx-1") as flooder, herd.bus(P.SPAWNER) as bus:
        await fill_up(flooder)
        watching = asyncio.create_task(fullness.watch(bus))
        async with asyncio.timeout(PATIENCE):
            while fullness.remark() is None:
                await asyncio.sleep(0.01)
        watching.cancel()
    ratio = registry.get_sample_value("sandherd_stream_fill_ratio", {"stream": "EVENTS"})
    assert ratio is not None
    assert 0.99 < ratio <= 1
    assert (fullness.remark() or "").startswith("EVENTS is 100% full")
