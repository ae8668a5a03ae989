"""event-ingest is killed at each step of an archive: nothing is lost, and nothing is archived twice."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from event_ingest.archive.event_files import read_keys
from event_ingest.archive.s3_store import S3Store
from event_ingest.storage.s3_place import S3Place
from tests.engines.s3_server import BUCKET, KEY, Fault, S3Network, s3_network, serving_s3
from tests.integration.event_ingest.old_days import OldDays, opened_old_days
from tests.patience import PATIENCE
from tests.polling import eventually

FORKING = """
import asyncio, os, sys
from functools import partial
from datetime import UTC, datetime
import obstore, pyarrow.parquet
import event_ingest.archive.archiver, event_ingest.storage.bucket
from event_ingest.archive.history_archive import HistoryArchive, archive_store
from event_ingest.database import Database
from event_ingest.history_retention import HistoryRetention, policy_of
from event_ingest.schema import Schema
from prometheus_client import CollectorRegistry
from sandherd.settings import load
from sandherd.telemetry.meters import Meters

async def run(settings, meters):
    database = Database(settings.database_url, Schema(partial(datetime.now, UTC)).prepare)
    archive = HistoryArchive(archive_store(settings), meters)
    retention = HistoryRetention(database, meters, policy_of(settings), archive)
    await asyncio.gather(database.run_checks(), retention.run())

settings = load().settings
for _ in sys.stdin:
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        asyncio.run(run(settings, Meters(CollectorRegistry())))
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""
"""For each line of input, a fork that runs event-ingest's retention and prints its process id, and then the status.

The forks share the loaded modules, whose import takes most of the time of a start.
"""
_LOCKS = """
select count(*) from pg_locks join pg_database on pg_database.oid = database
where locktype = 'advisory' and datname = current_database()
"""
STEPS = (
    (Fault.HELD_REPLY, "GET manifest.json"),
    (Fault.HELD, "PUT default"),
    (Fault.HELD_REPLY, "PUT default"),
    (Fault.HELD_REPLY, "GET default"),
    (Fault.HELD_REPLY, "PUT other"),
    (Fault.HELD, "PUT manifest.json"),
    (Fault.HELD_REPLY, "PUT manifest.json"),
)
"""The requests at which it is killed, one after the other: the last when the manifest is stored, but no day dropped."""


@asynccontextmanager
async def forking(url: str, network: S3Network) -> AsyncIterator[Process]:
    environment = os.environ | {
        "DATABASE_URL": url,
        "SANDHERD_HISTORY_ARCHIVE": f"s3://{BUCKET}/{network.prefix}",
        "SANDHERD_S3_ENDPOINT": network.url,
        "SANDHERD_S3_ACCESS_KEY_ID": KEY,
        "SANDHERD_S3_SECRET_ACCESS_KEY": KEY,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FORKING, env=environment, stdin=PIPE, stdout=PIPE
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


async def number(process: Process) -> int:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        return int(await process.stdout.readline())


async def start(process: Process) -> int:
    """Start the retention; returns its process id."""
    assert process.stdin is not None
    process.stdin.write(b"\n")
    return await number(process)


async def kill(process: Process, child: int) -> None:
    os.kill(child, signal.SIGKILL)
    assert await number(process) == signal.SIGKILL


@pytest.mark.faults
async def test_kill_at_each_step_of_an_archive_loses_nothing_and_archives_nothing_twice(
    history: Any, script: Any, tmp_path: Path
) -> None:
    """With a store with the API of S3, the day is dropped only when all of its events are listed, each once."""
    with serving_s3(tmp_path / "s3") as url, s3_network(url) as network:
        async with opened_old_days(history) as days, forking(history.url, network) as process:
            events = [*script.messages("sbx-1", 10), *script.messages("sbx-2", 3, project="other")]
            await days.store(events, days.old)
            before = [row["id"] for row in await history.rows("select id from events order by id")]
            for fault, request in STEPS:
                await kill_at(process, network, days, fault, request)
                assert [row["id"] for row in await history.rows("select id from events order by id")] == before
            network.fault = lambda request: None
            child = await start(process)
            await eventually(lambda: is_dropped(days), "the day is dropped", PATIENCE)
            await kill(process, child)
            assert await asyncio.to_thread(archived, network, days) == before


async def is_dropped(days: OldDays) -> bool:
    return not await days.has(days.old)


async def kill_at(process: Process, network: S3Network, days: OldDays, fault: Fault, request: str) -> None:
    """Start the retention, and kill it at its first request about the old day that begins with this text."""
    network.held.clear()
    network.fault = lambda made: fault if made.startswith(request) else None
    child = await start(process)
    assert await asyncio.to_thread(network.held.wait, PATIENCE), (request, network.requests)
    await kill(process, child)
    await eventually(lambda: is_free(days), "Postgres has noticed the end of the process", PATIENCE)


async def is_free(days: OldDays) -> bool:
    """Whether another process may archive at once, without waiting for a minute."""
    return not await days.connection.fetchval(_LOCKS)


def archived(network: S3Network, days: OldDays) -> list[Any]:
    """The ids of the events in all files of the day; each file must be listed."""
    place = S3Place(BUCKET, network.prefix, endpoint=network.url, access_key_id=KEY, secret_access_key=KEY)
    store, found = S3Store(place), []
    files = [file.name for file in store.manifest(days.old).files]
    assert sorted(store._names(days.old)) == sorted([*files, "manifest.json"])
    for name in files:
        with store.open_file(days.old, name) as opened:
            found += [key[1] for key in read_keys(opened)]
    return sorted(found)
