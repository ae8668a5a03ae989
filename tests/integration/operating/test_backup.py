"""A herd is backed up by the commands of docs/backup.md, lost completely, and restored into a new stack."""

import asyncio
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from event_ingest.upgrade import upgrade
from sandherd.client import Herd
from sandherd.client.herd import task_spec
from sandherd.contracts.requests import Audit, TaskView
from sandherd.contracts.subjects import Principal
from sandherd.stack.postgres import PostgresServer, binaries
from tests.databases import drop_database
from tests.integration.operating.backup_commands import Place, followed, place
from tests.integration.operating.herds import answer, context, running, until
from tests.patience import PATIENCE


@dataclass
class Seen:
    """The state of a herd: its history, its live tasks, and whether anything is missing."""

    events: list[dict[str, Any]]
    past: list[dict[str, Any]]
    live: dict[str, TaskView]
    missing: int


def timeless(view: TaskView) -> TaskView:
    """A task without its score, which grows while it waits, and without the state of the task that it waits for."""
    return view.model_copy(update={"score": None, "waits_for": None})


async def seen(herd: Herd) -> Seen:
    events = [event.model_dump(mode="json") async for event in herd.events()]
    past = [view.model_dump(mode="json") for view in (await herd.tasks(past=True)).items]
    live = {view.task: timeless(view) for view in (await herd.tasks()).items}
    return Seen(events, past, live, (await herd.audit()).missing)


@pytest.fixture
async def retained(own_directory: Path) -> Path:
    return own_directory


@pytest.mark.timeout(900)
async def test_lost_herd_continues_from_its_backup(postgres_server: PostgresServer, retained: Path) -> None:
    """One task is done, one runs and one waits for it when broker, database and sandboxes are lost.

    In a new stack the history and the live state equal the backup exactly. The running task is retried, as its sandbox
    is lost; then the waiting one completes. No event is missing or duplicated. Nothing but the backup remains of the
    old place: no folder of keys, and no role permitted to read the history. The old herd was old: its leases had been
    renewed more often than those of the new one will be for hours.
    """
    go, reader = retained / "go", f"reader_{uuid4().hex}"
    async with place(postgres_server) as first:
        await has_lived_long(first)
        async with (
            running(first.broker, first.database, first.home, isolation="none", max_attempts=3),
            Herd.connect(context(first.broker)) as herd,
        ):
            await works(herd, go)
            before = await settled(herd)
        await executed(first.database, f"create role {reader}; grant select on events to {reader}")
        await is_backed_up(first, retained)
    await executed(postgres_server.url("postgres"), f"drop role {reader}")
    (retained / "herd").rename(retained / "lost")
    async with place(postgres_server, retained / "lost/identity") as second:
        await is_restored(postgres_server, second, retained)
        async with (
            running(second.broker, second.database, second.home, isolation="none", max_attempts=3),
            Herd.connect(context(second.broker)) as herd,
        ):
            await is_as_before(herd, before)
            go.touch()
            await goes_on(herd, before)


async def has_lived_long(at: Place) -> None:
    async with at.broker.bus(Principal.SPAWNER) as bus:
        for _ in range(5000):
            await bus.client.publish("$KV.leases.spawner.before", b"")
        await bus.client.flush()


async def executed(database: str, statement: str) -> None:
    connection = await asyncpg.connect(database)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def works(herd: Herd, go: Path) -> None:
    """Run three tasks: one is done, one waits for a file, and one for the second."""
    await herd.submit("say it", ["/bin/sh", "-c", "echo done"], task="task-done")
    waits = ["/bin/sh", "-c", f"while [ ! -e {go} ]; do sleep 0.2; done"]
    await herd.submit(task_spec("wait for it", waits), task="task-at-work")
    await herd.submit(task_spec("after it", ["true"], depends_on=["task-at-work"]), task="task-waiting")
    assert (await herd.wait("task-done")).state == "completed"


async def settled(herd: Herd) -> Seen:
    """Wait until all published events are stored, and none are published at present."""

    async def look() -> Seen | None:
        found = await seen(herd)
        states = {name: view.state for name, view in found.live.items()}
        wanted = {"task-done": "completed", "task-at-work": "running", "task-waiting": "pending"}
        ended = any(event["envelope"]["type"] == "sandbox.terminated" for event in found.events)
        whole = (await herd.audit()).unstored == 0 and found.events == (await seen(herd)).events
        return found if states == wanted and ended and whole else None

    found: Seen = await until(look)
    return found


async def is_backed_up(first: Place, retained: Path) -> None:
    """Back it up as docs/backup.md says: the keys, the streams, the history."""
    output = await followed("Make a backup", first, retained)
    assert output[0] == "compose stop spawner event-ingest monitor message-relay gateway"
    for folder in ("monday", "monday/streams", "herd"):
        assert (retained / folder).stat().st_mode & 0o777 == 0o700
    readable = [file for file in (retained / "monday/streams").iterdir() if file.stat().st_mode & 0o077]
    assert readable == []
    output = await followed("Make a backup", first, retained, number=1)
    assert [words.split()[0] for words in output] == ["scale", "port-forward", "scale"]


async def is_restored(server: PostgresServer, second: Place, retained: Path) -> None:
    output = await followed("Restore a backup", second, retained, until="docker compose up -d\n")
    assert "compose up -d nats postgres" in output
    again = await asyncio.to_thread(second.command, "restore", str(retained / "monday/streams"))
    states = {row["stream"]: row["state"] for row in answer(again)}
    assert states["EVENTS"] == states["KV_tasks"] == "as it was"
    # The other backup is of the same time: its streams exist already, and its history goes into another database.
    database = f"test_{uuid4().hex}"
    await server.create_database(database)
    await followed("Restore a backup", replace(second, database=server.url(database)), retained, number=1)
    await drop_database(server, database)


async def is_as_before(herd: Herd, before: Seen) -> None:
    async def known() -> bool:
        """Wait until the spawner knows its records: it replies as soon as it runs."""
        return len((await herd.tasks()).items) == len(before.live)

    await until(known)
    events = [event.model_dump(mode="json") async for event in herd.events()]
    assert events[: len(before.events)] == before.events
    past = {view.task: view.model_dump(mode="json") for view in (await herd.tasks(past=True)).items}
    live = {view.task: timeless(view) for view in (await herd.tasks()).items}
    assert live.keys() == before.live.keys() == past.keys()
    for task in ("task-done", "task-waiting"):
        assert live[task] == before.live[task]
        assert past[task] in before.past


async def goes_on(herd: Herd, before: Seen) -> None:
    for task, attempt in (("task-at-work", 2), ("task-waiting", 1)):
        view = await asyncio.wait_for(herd.wait(task), PATIENCE)
        assert (view.state, view.attempt) == ("completed", attempt), view

    async def stored() -> Audit | None:
        audit = await herd.audit()
        return audit if audit.unstored == 0 else None

    audit: Audit = await until(stored)
    assert (audit.missing, audit.conflicts, audit.dead) == (0, 0, 0), audit
    ids = [event.envelope["id"] async for event in herd.events()]
    assert len(ids) == len(set(ids)) > len(before.events)
    again = [event.model_dump(mode="json") async for event in herd.events()]
    assert sum(event["envelope"]["subject"] == "task-done" for event in again) == sum(
        event["envelope"]["subject"] == "task-done" for event in before.events
    )


async def test_older_history_is_completed_by_reread(postgres_server: PostgresServer, retained: Path) -> None:
    """After the loss of Postgres, with an older dump, `reread` restores what the broker has, each event once.

    Before that, event-ingest has found the database empty and has created its tables in it, as it does within a second.
    """
    async with place(postgres_server) as herds:
        (retained / "monday").mkdir()
        shutil.copytree(herds.keys, retained / "herd/identity")
        async with (
            running(herds.broker, herds.database, herds.home, isolation="none"),
            Herd.connect(context(herds.broker)) as herd,
        ):
            await herd.submit("one", ["true"], task="task-one")
            await herd.wait("task-one")
            where = f"--file={retained / 'monday/history.dump'}"
            dump = [str(binaries() / "pg_dump"), "--format=custom", where, herds.database]
            await asyncio.to_thread(subprocess.run, dump, check=True, timeout=PATIENCE)
            await herd.submit("two", ["true"], task="task-two")
            await herd.wait("task-two")
            before = await all_stored(herd)
        name = herds.database.partition("@/")[2].partition("?")[0]
        await drop_database(postgres_server, name)
        await postgres_server.create_database(name)
        assert await upgrade(herds.database, PATIENCE, after=False)
        output = await followed("Only the database was lost", herds, retained)
        assert (output[0], output[-1]) == ("compose stop event-ingest", "compose start event-ingest")
        async with (
            running(herds.broker, herds.database, herds.home, isolation="none"),
            Herd.connect(context(herds.broker)) as herd,
        ):
            assert await all_stored(herd) == before
            assert (await herd.audit()).missing == 0


async def all_stored(herd: Herd) -> list[dict[str, Any]]:
    async def stored() -> list[dict[str, Any]] | None:
        behind = (await herd.audit()).unstored  # requested first: events that are stored in between are not among these
        events = [event.model_dump(mode="json") async for event in herd.events()]
        ended = sum(event["envelope"]["type"] == "sandbox.terminated" for event in events)
        return events if behind == 0 and ended == 2 else None

    found: list[dict[str, Any]] = await until(stored)
    return found
