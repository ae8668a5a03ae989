"""The uplink at a full stream retries, and publishes nothing twice."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from sandherd.bus.connection import Bus, StreamFullError
from sandherd.bus.stream_configs import stream_config
from sandherd.contracts.streams import BY_STREAM
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from sandherd_worker.spool import Spool
from sandherd_worker.spool_file import RecordKind, SpoolRecord
from sandherd_worker.uplink import Uplink
from tests.patience import PATIENCE

SUBJECT = "sandherd.v1.event.default.sbx-1.agent.message"
LARGE = b"x" * 200_000


@asynccontextmanager
async def sending(spool: Spool, bus: Bus) -> AsyncIterator[None]:
    uplink = Uplink(spool)
    task = asyncio.create_task(uplink.run(bus))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        uplink.close()


async def ids(bus: Bus) -> list[str]:
    """The message ids in the stream, in its order."""
    state = (await bus.js.stream_info("EVENTS")).state
    found = [await bus.js.get_msg("EVENTS", seq=seq) for seq in range(state.first_seq, state.last_seq + 1)]
    return [(message.headers or {})["Nats-Msg-Id"] for message in found]


async def until_stored(bus: Bus, wanted: set[str]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not wanted <= set(await ids(bus)):
            await asyncio.sleep(0.02)


async def until_forgotten(bus: Bus) -> None:
    """Wait until the broker no longer knows an id that it received after all others."""
    await bus.publish(SUBJECT, b"x", msg_id="probe")
    async with asyncio.timeout(PATIENCE):
        while (await bus.publish(SUBJECT, b"x", msg_id="probe")).duplicate:
            await asyncio.sleep(0.02)


@pytest.mark.own_broker
async def test_messages_accepted_behind_a_refused_one_are_not_repeated(herd: Broker, tmp_path: Path) -> None:
    """A refused large event and the accepted smaller ones behind it are each stored once.

    By the time of the retry the broker no longer knows the ids of the accepted ones.
    """
    config = stream_config(replace(BY_STREAM["EVENTS"], max_bytes=1024 * 1024, duplicate_window=0.1))
    spool = Spool.open(tmp_path / "spool", limit=16 * 1024 * 1024)
    small = {f"small-{number}" for number in range(5)}
    async with (
        herd.provisioner() as jetstream,
        herd.bus(Principal.MONITOR) as reader,
        herd.bus(Principal.WORKER, sandbox="sbx-1") as bus,
    ):
        await jetstream.update_stream(config)
        with suppress(StreamFullError):
            for number in range(100):
                await bus.publish(SUBJECT, LARGE, msg_id=f"flood-{number}")
        for msg_id, payload in [("first", b"x"), ("large", LARGE), *((name, b"x") for name in sorted(small))]:
            await spool.append(SpoolRecord(RecordKind.EVENT, SUBJECT, msg_id, payload, 1))
        async with sending(spool, bus):
            await until_stored(reader, small)
            assert "large" not in await ids(reader)
            await until_forgotten(bus)
            await jetstream.purge_stream("EVENTS", seq=3)
            async with asyncio.timeout(PATIENCE):
                await spool.until(lambda: spool.depth == 0)
        stored = [name for name in await ids(reader) if name in small | {"first", "large"}]
        assert sorted(stored) == sorted(small | {"first", "large"})
