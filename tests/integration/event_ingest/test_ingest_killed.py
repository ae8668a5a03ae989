"""event-ingest is killed at the worst moment, or run twice at once: every event is stored, and none twice."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from sandherd.contracts.chunks import CHUNK_BYTES, ArtifactBuilder
from sandherd.contracts.requests import GetAudit
from sandherd.contracts.subjects import Principal
from sandherd.stack.readiness import read_readiness
from tests.patience import PATIENCE
from tests.polling import eventually

SANDBOXES = 8
EVENTS_EACH = 375
KILLS = 3
RUN = """
from event_ingest import main, batch_writer
batch_writer._MIN_EVENTS_FOR_COPY = {copied}
main.main()
"""
"""The real event-ingest; it writes batches of this number of events or more by COPY first."""
DIE_IN_A_BATCH = """
import os, signal
from event_ingest import ingest, main, batch_writer
batch_writer._MIN_EVENTS_FOR_COPY, left = {copied}, [3]
def die():
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
count, fold, store = batch_writer.batch_totals, batch_writer._fold, ingest.store
def die_and_count(batch):
    die()
    return count(batch)
async def fold_and_die(connection, projections):
    await fold(connection, projections)
    die()
async def store_and_die(database, batch):
    stored = await store(database, batch)
    die()
    return stored
if {step!r} == "written":
    batch_writer.batch_totals = die_and_count
elif {step!r} == "counted":
    batch_writer._fold = fold_and_die
else:
    ingest.store = store_and_die
main.main()
"""
"""The real event-ingest, killed in its third batch: after writing rows, after counting, or after the commit.

The first two are before the transaction ends; the last is before the acknowledgement.
"""
DIE_WHILE_COPYING = """
import os, signal
from event_ingest import main
from event_ingest.storage.new_files import NewFile
write, left = NewFile.write, [2]
def write_and_die(file, data):
    write(file, data)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
NewFile.write = write_and_die
main.main()
"""
"""The real event-ingest, killed when it has written two of an artifact's three chunks."""


async def _start(world: Any, program: str, **more: str) -> Process:
    settings = world.broker.settings(Principal.EVENT_INGEST)
    environment = os.environ | {
        "NATS_URL": world.broker.url,
        "SANDHERD_CREDENTIALS": str(settings.credentials),
        "DATABASE_URL": world.postgres,
        "SANDHERD_INGEST_BATCH": "100",
        "SANDHERD_LOG_LEVEL": "error",
        **more,
    }
    return await asyncio.create_subprocess_exec(sys.executable, "-c", program, env=environment, stdout=DEVNULL)


async def _start_ready(world: Any, file: Path, copied: int) -> Process:
    """Start a process that works, and so ends normally on request."""
    process = await _start(world, RUN.format(copied=copied), SANDHERD_HTTP_PORT_FILE=str(file))
    async with asyncio.timeout(PATIENCE):
        while not (file.exists() and (await read_readiness(f"http://127.0.0.1:{file.read_text().strip()}"))[0]):
            await asyncio.sleep(0.05)  # another process can set no event here
    return process


async def _end(process: Process) -> None:
    process.terminate()
    async with asyncio.timeout(PATIENCE):
        assert await process.wait() == 0


async def _publish_all(world: Any, script: Any) -> int:
    events = [script.messages(f"sbx-{place}", EVENTS_EACH) for place in range(SANDBOXES)]
    await world.voices([own[0] for own in events])
    for own in events:
        await world.emit(own)
    return SANDBOXES * EVENTS_EACH


async def _audit_is_clean(world: Any, count: int) -> Any:
    async with world.service().running():
        while True:
            audit = await world.ask(GetAudit())
            if audit.unstored == 0:
                break
            await asyncio.sleep(0.05)
    assert (audit.event_count, audit.missing, audit.sources, audit.dead) == (count, 0, [], 0)
    return audit


@pytest.mark.faults
@pytest.mark.parametrize(("step", "copied"), [("written", 1), ("counted", 1), ("committed", 1), ("committed", 10**6)])
async def test_kill_in_a_batch_counts_once(world: Any, script: Any, step: str, copied: int) -> None:
    """With rows that are copied or inserted, a killed batch counts once: at its commit, or when it is redelivered."""
    count = await _publish_all(world, script)
    for _ in range(KILLS):
        process = await _start(world, DIE_IN_A_BATCH.format(step=step, copied=copied))
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() == -signal.SIGKILL
    process = await _start(world, RUN.format(copied=copied))
    await world.stored(count)
    await _end(process)
    audit = await _audit_is_clean(world, count)
    assert audit.duplicates_refused > 0 or step != "committed"


@pytest.mark.faults
@pytest.mark.parametrize("copied", [1, 10**6])
async def test_two_processes_share_the_work(world: Any, script: Any, tmp_path: Path, copied: int) -> None:
    """Two processes on one durable consumer and one database store and count each event once, and leave none out."""
    started = await asyncio.gather(*[_start_ready(world, tmp_path / f"port-{one}", copied) for one in range(2)])
    count = await _publish_all(world, script)
    await world.stored(count)
    for process in started:
        await _end(process)
    await _audit_is_clean(world, count)


@pytest.mark.faults
async def test_kill_while_an_artifact_is_copied_leaves_nothing_that_counts(
    world: Any, script: Any, tmp_path: Path
) -> None:
    """A partly written file is no content; the next process copies the artifact, once."""
    content = bytes(range(256)) * 1100
    builder = ArtifactBuilder("default", "sbx-1", "a-1", "application/octet-stream")
    chunks = [content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)]
    worker = await world.bus(Principal.WORKER, sandbox="sbx-1")
    for chunk in chunks:
        await worker.publish(builder.subject, chunk, msg_id=builder.add(chunk))
    await world.emit([script.agent("agent.work_saved", "sbx-1", artifact=builder.reference(), files=1)])
    process = await _start(world, DIE_WHILE_COPYING, SANDHERD_ARTIFACT_STORE=str(tmp_path))
    async with asyncio.timeout(PATIENCE):
        assert await process.wait() == -signal.SIGKILL
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.read_bytes() == content for path in left] == [False]
    connection = await asyncpg.connect(world.postgres)
    try:
        assert await connection.fetchval("select count(*) from artifacts where stored_at is null") == 1

        async def stored() -> bool:
            return bool(await connection.fetchval("select exists (select from artifacts where stored_at is not null)"))

        async with world.service(artifact_store=str(tmp_path)).running():
            await eventually(stored, "the artifact is stored", PATIENCE)
        assert await connection.fetchval("select count(*) from artifact_contents") == 1
    finally:
        await connection.close()
    [file] = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert file.read_bytes() == content
