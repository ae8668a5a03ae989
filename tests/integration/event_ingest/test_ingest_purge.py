"""A sandbox floods EVENTS or ARTIFACTS: no acknowledged message of others is lost, and the streams recover."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from event_ingest.stream_purge_policy import GOAL, MIN_CHUNKS, PURGE_THRESHOLD
from sandherd.bus.connection import Bus, RefusedError, StreamFullError
from sandherd.bus.stream_configs import stream_config
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import GetAudit
from sandherd.contracts.streams import BY_STREAM
from sandherd.contracts.subjects import ARTIFACT, Principal, event_subject
from sandherd.service.stream_usage import read_fill
from sandherd_worker.spool import Spool
from sandherd_worker.spool_file import RecordKind, SpoolRecord
from sandherd_worker.uplink import Uplink
from tests.patience import PATIENCE
from tests.polling import eventually

LIMIT = 2 * 1024 * 1024
LARGE = "x" * 100_000


async def make_small(world: Any, stream: str, max_bytes: int) -> None:
    async with world.broker.provisioner() as jetstream:
        await jetstream.update_stream(stream_config(replace(BY_STREAM[stream], max_bytes=max_bytes)))


@pytest.fixture
async def small(world: Any) -> Any:
    """The broker, with a small stream of events that nothing purges."""
    await make_small(world, "EVENTS", LIMIT)
    return world


def flood(script: Any, sandbox: str, count: int) -> list[Any]:
    return [script.agent("agent.message", sandbox, content=LARGE, content_length=len(LARGE)) for _ in range(count)]


@asynccontextmanager
async def saying(world: Any, events: list[Any]) -> AsyncIterator["asyncio.Task[None]"]:
    """Publish these events in the background, each until the broker has it."""
    await world.voices(events)
    task = asyncio.create_task(world.emit(events))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until_full(world: Any, sandbox: str) -> None:
    """Wait until a large event no longer fits."""
    bus: Bus = await world.bus(Principal.WORKER, sandbox=sandbox)
    subject = event_subject("default", sandbox, "agent.message")

    async def refused() -> bool:
        fill = await read_fill(await world.bus(Principal.EVENT_INGEST), "EVENTS")
        return fill.limit - fill.held < len(LARGE)

    await eventually(refused)
    with pytest.raises(StreamFullError):
        await bus.publish(subject, LARGE.encode(), msg_id=f"refused-{sandbox}")


async def test_flood_without_the_database_loses_nothing(small: Any, script: Any, postgres_server: Any) -> None:
    """All acknowledged and all later events are stored when Postgres is back.

    One worker floods the stream with four times its capacity; another worker, the spawner and the monitor publish
    before the flood and during it.
    """
    before = [*script.messages("sbx-quiet", 20), *script.life("task-1", "sbx-quiet")]
    meanwhile = [*script.messages("sbx-quiet", 20), *script.life("task-2", "sbx-other")]
    meanwhile.append(
        script.emit(
            "monitor.dead_found", "sbx-other", "/sandherd/monitor/1", rule="dead", age_seconds=1, limit_seconds=1
        )
    )
    mad = flood(script, "sbx-mad", 80)
    async with small.service().running() as service, aiohttp.ClientSession() as session:
        await postgres_server.kill()
        try:
            await small.emit(before)
            async with saying(small, mad) as flooding, saying(small, meanwhile) as speaking:
                await until_full(small, "sbx-mad")
                fill = await read_fill(service.bus, "EVENTS")
                assert fill.first == 1, "something went that was not stored"
                await eventually(partial(_is_logged, session, service.http_port, "EVENTS is"))
                assert not flooding.done()
                await postgres_server.restart()
                await asyncio.gather(flooding, speaking)
        finally:
            await postgres_server.restart()
        await small.stored(len(before) + len(meanwhile) + len(mad))
        await whole(small)


async def _is_logged(session: aiohttp.ClientSession, port: int, text: str) -> bool:
    async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
        return f"streams: look: {text}" in await answer.text()


async def whole(world: Any) -> None:
    """Check that nothing is missing. Until event-ingest has noticed that Postgres is back, it replies `unavailable`."""

    async def stored() -> bool:
        try:
            return not (await world.ask(GetAudit())).unstored
        except RefusedError as error:
            if error.problem.code is not Code.UNAVAILABLE:
                raise
            return False

    await eventually(stored)
    audit = await world.ask(GetAudit())
    assert (audit.missing, audit.conflicts, audit.dead) == (0, 0, 0)


async def test_refused_events_stay_in_the_spool(small: Any, script: Any, tmp_path: Path) -> None:
    """Without event-ingest a worker's events wait on its disk; once it runs, they are stored in order."""
    mad, quiet = flood(script, "sbx-mad", 60), flood(script, "sbx-quiet", 10)
    bus: Bus = await small.bus(Principal.WORKER, sandbox="sbx-quiet")
    spool = Spool.open(tmp_path / "spool", limit=64 * 1024 * 1024)
    uplink = Uplink(spool)
    async with saying(small, mad) as flooding:
        await until_full(small, "sbx-mad")
        sending = asyncio.create_task(uplink.run(bus))
        try:
            for event in quiet:
                subject = event_subject(event.project, event.subject, event.type)
                await spool.append(
                    SpoolRecord(RecordKind.EVENT, subject, str(event.id), event.to_json(), event.sequence)
                )
            assert spool.depth == len(quiet)
            async with small.service().running():
                await flooding
                async with asyncio.timeout(PATIENCE):
                    await spool.until(lambda: spool.depth == 0)
                await small.stored(len(mad) + len(quiet))
                await whole(small)
        finally:
            sending.cancel()
            await asyncio.wait([sending])
            uplink.close()


async def test_stored_events_are_cleared_to_half_of_the_stream(small: Any, script: Any) -> None:
    """After many times the stream's capacity has passed through it, the stream is neither full nor empty."""
    async with small.service().running() as service:
        await small.emit(flood(script, "sbx-1", 150))
        await small.stored(150)

        async def roomy() -> bool:
            # Metrics count it after the broker has purged it.
            given = service.registry.get_sample_value("sandherd_room_given_bytes_total", {"stream": "EVENTS"}) or 0
            return (await read_fill(service.bus, "EVENTS")).ratio < PURGE_THRESHOLD and given > LIMIT

        await eventually(roomy)
        fill = await read_fill(service.bus, "EVENTS")
        assert fill.ratio > GOAL / 2


async def test_second_replica_clears_after_the_first_has_stopped(small: Any, script: Any) -> None:
    """One replica clears at a time; a flood that began under the first one passes under the second.

    How much the first one has let through is random: there is more than the stream can hold afterwards.
    """
    mad, more = flood(script, "sbx-mad", 120), flood(script, "sbx-mad", 60)
    second = small.service()
    async with second.running():
        async with small.service().running() as first, saying(small, mad) as flooding:

            async def given() -> bool:
                return any(purged_bytes(service) > 0 for service in (first, second))

            await eventually(given)
        await asyncio.wait([flooding])
        await small.emit([*mad, *more])
        await small.stored(len(mad) + len(more))
        assert purged_bytes(second) > 0
        await whole(small)


def purged_bytes(service: Any) -> float:
    """The number of bytes that a replica has purged from EVENTS."""
    return service.registry.get_sample_value("sandherd_room_given_bytes_total", {"stream": "EVENTS"}) or 0.0


async def test_events_that_the_spawner_has_not_handled_stay(small: Any, script: Any) -> None:
    """An event that another durable consumer still waits for is never cleared, even if it is stored."""
    about = {"agent": "a", "sdk": "none", "task": "", "task_description_length": 0, "timestamp": script.clock}
    await small.emit([script.agent("agent.started", "sbx-1", **about)])
    mad = flood(script, "sbx-mad", 60)
    async with small.service().running() as service, saying(small, mad) as flooding:
        await until_full(small, "sbx-mad")
        fill = await read_fill(service.bus, "EVENTS")
        await small.stored(fill.messages)
        assert (await read_fill(service.bus, "EVENTS")).first == 1
        spawner: Bus = await small.bus(Principal.SPAWNER)
        agents = await spawner.js.pull_subscribe_bind("spawner-agents", stream="EVENTS")
        (started,) = await agents.fetch(1, timeout=PATIENCE)
        await started.ack_sync()
        await flooding
        await small.stored(1 + len(mad))


async def test_sandbox_that_fills_artifacts_loses_its_oldest(world: Any) -> None:
    """A sandbox that fills ARTIFACTS loses its own oldest chunks; another's stay, and its next ones are accepted."""
    await make_small(world, "ARTIFACTS", 4 * 1024 * 1024)
    chunk = b"x" * 4096
    mad: Bus = await world.bus(Principal.WORKER, sandbox="sbx-mad")
    quiet: Bus = await world.bus(Principal.WORKER, sandbox="sbx-quiet")
    await keep_chunks(quiet, "sbx-quiet", chunk, 20)
    with pytest.raises(StreamFullError):
        await keep_chunks(mad, "sbx-mad", chunk, 2000)
    with pytest.raises(StreamFullError):
        await keep_chunks(quiet, "sbx-quiet", chunk, 40)
    async with world.service().running() as service:

        async def roomy() -> bool:
            return (await read_fill(service.bus, "ARTIFACTS")).ratio < PURGE_THRESHOLD

        await eventually(roomy)
        await keep_chunks(quiet, "sbx-quiet", chunk, 40)
        count: dict[str, int] = {}

        async def given_up() -> bool:
            """Wait for the loss: chunks are purged one by one, a moment after there is space again."""
            count.update(await chunks_held(service.bus))
            return count["sbx-mad"] <= MIN_CHUNKS

        await eventually(given_up)
        assert count == {"sbx-mad": MIN_CHUNKS, "sbx-quiet": 40}


async def chunks_held(bus: Bus) -> dict[str, int]:
    """The number of chunks of each sandbox in ARTIFACTS."""
    held = await bus.js.stream_info("ARTIFACTS", subjects_filter=ARTIFACT.pattern())
    count = dict.fromkeys(("sbx-mad", "sbx-quiet"), 0)
    for subject, chunks in (held.state.subjects or {}).items():
        count[(ARTIFACT.match(subject) or {})["sandbox"]] += chunks
    return count


async def keep_chunks(bus: Bus, sandbox: str, chunk: bytes, count: int) -> None:
    for number in range(count):
        subject = ARTIFACT.fill(project="default", sandbox=sandbox, artifact=f"art-{number // 10}")
        await bus.publish(subject, chunk, msg_id=f"{sandbox}-{number}")
