"""Publishers at a full stream lose no message, publish none twice, and give up none."""

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import replace

import pytest

from sandherd.bus.connection import Bus, StreamFullError
from sandherd.bus.provision import provision
from sandherd.bus.publisher import EventPublisher
from sandherd.bus.stream_configs import stream_config
from sandherd.contracts.events.monitor import MonitorDeadFound
from sandherd.contracts.streams import BY_STREAM
from sandherd.contracts.subjects import Principal
from sandherd.service.stream_usage import StreamUsage, read_fill
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
    """Publish until the stream refuses even small messages; returns how many large ones it stored."""
    taken = 0
    for size in (len(LARGE), 1000, 1):
        with suppress(StreamFullError):
            while True:
                await bus.publish_stored(FLOOD, LARGE[:size], msg_id=f"flood-{size}-{taken}", while_full=False)
                taken += 1
    return taken


async def test_full_stream_returns_a_retryable_error(herd: Broker) -> None:
    """Workers and services receive a retryable error, and no stored message is discarded."""
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


async def test_refused_message_is_stored_once_after_space_is_freed(herd: Broker) -> None:
    """A refusal does not count for deduplication: the same id is accepted later, and then is a duplicate."""
    await make_small(herd)
    async with herd.bus(P.WORKER, project="p1", sandbox="sbx-1") as bus, herd.provisioner() as jetstream:
        await fill_up(bus)
        with pytest.raises(StreamFullError):
            await bus.publish(FLOOD, LARGE, msg_id="late")
        await jetstream.purge_stream("EVENTS", seq=5)
        assert not (await bus.publish(FLOOD, LARGE, msg_id="late")).duplicate
        assert (await bus.publish(FLOOD, LARGE, msg_id="late")).duplicate


async def test_numbered_event_is_retried_until_space_is_freed(herd: Broker) -> None:
    """A service's event is published again until it is accepted, and refusals use no sequence number."""
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
                return await publish(*args, **named)  # type: ignore[arg-type]  # observed
            except StreamFullError:
                refused.set()
                raise

        bus.publish = watched  # type: ignore[method-assign, assignment]  # watched
        sender = EventPublisher(bus, "monitor")
        found = MonitorDeadFound(rule="dead", age_seconds=1, limit_seconds=1)
        saying = asyncio.create_task(sender.publish(found, project="p1", entity="sbx-1"))
        await refused.wait()
        assert not saying.done()
        await jetstream.purge_stream("EVENTS", seq=5)
        assert (await saying).sequence == 1
        assert (await sender.publish(found, project="p1", entity="sbx-1")).sequence == 2


async def test_upgraded_stream_no_longer_drops_the_oldest(herd: Broker) -> None:
    """After the upgrade a full EVENTS refuses, although the older set-up dropped the oldest events."""
    async with herd.provisioner() as jetstream:
        old = stream_config(replace(BY_STREAM["EVENTS"], refuse_when_full=False))
        await jetstream.update_stream(old)
        async with herd.bus(P.MONITOR) as bus:
            await bus.publish(SUBJECTS[P.MONITOR], b"{}", msg_id="1")
            await provision(jetstream)
            fill = await read_fill(bus, "EVENTS")
            assert (fill.refuses, fill.messages) == (True, 1)


async def test_fullness_of_a_stream_is_exported_by_name(herd: Broker) -> None:
    """Each stream of a service has its ratio under its own name, and one that will soon refuse is reported."""
    from prometheus_client import CollectorRegistry

    from sandherd.telemetry.meters import Meters

    await make_small(herd)
    registry = CollectorRegistry()
    fullness = StreamUsage(("EVENTS", "OUTPUT", "KV_tasks"), Meters(registry))
    async with herd.bus(P.WORKER, project="p1", sandbox="sbx-1") as flooder, herd.bus(P.SPAWNER) as bus:
        await fill_up(flooder)
        watching = asyncio.create_task(fullness.watch(bus))
        async with asyncio.timeout(PATIENCE):
            while fullness.warning() is None:
                await asyncio.sleep(0.01)
        watching.cancel()
    ratio = registry.get_sample_value("sandherd_stream_fill_ratio", {"stream": "EVENTS"})
    assert ratio is not None
    assert 0.99 < ratio <= 1
    assert (fullness.warning() or "").startswith("EVENTS is 100% full")
