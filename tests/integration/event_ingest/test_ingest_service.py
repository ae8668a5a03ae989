"""The service on a real broker: its requests, and its state when a dependency is unavailable."""

import asyncio
import json
from contextlib import suppress
from functools import partial
from typing import Any

import aiohttp
import asyncpg
import pytest

from sandherd.bus.connection import RefusedError
from sandherd.contracts.errors import Code
from sandherd.contracts.events import EVENTS, base
from sandherd.contracts.requests import (
    GetAudit,
    GetOutput,
    GetTrajectory,
    ListDeadLetters,
    ListEvents,
    ListPastSandboxes,
    ListPastTasks,
    RequeueEventIngest,
)
from sandherd.contracts.subjects import OUTPUT, Principal, event_subject
from tests.databases import drop_database
from tests.patience import PATIENCE


async def test_stored_event_is_returned_to_its_project_only(running: Any, script: Any) -> None:
    """An event that its own credential has published is returned to a client of its project, but not of another."""
    events = [*script.life("task-1", "sbx-1"), *script.messages("sbx-1", 5)]
    await running.emit(events)
    await running.stored(len(events))
    own = await running.ask(ListEvents(sandbox="sbx-1"), "default")
    assert sorted(event.envelope["id"] for event in own.events) == sorted(
        str(event.id) for event in events if event.sandboxid == "sbx-1"
    )
    assert own.events[0].envelope["specversion"] == "1.0"
    assert (await running.ask(GetTrajectory(sandbox="sbx-1"), "default")).trajectory_events == 10
    assert [task.task for task in (await running.ask(ListPastTasks(), "default")).tasks] == ["task-1"]
    assert [box.events for box in (await running.ask(ListPastSandboxes(), "default")).sandboxes] == [10]
    assert (await running.ask(ListEvents(), "other")).events == []
    assert (await running.ask(ListPastTasks(), "other")).tasks == []
    assert (await running.ask(GetAudit(), "other")).event_count == 0


async def test_audit_finds_gaps_and_no_others(running: Any, script: Any) -> None:
    """A missing number is named until it is published; a number used twice does not hide another."""
    events = script.messages("sbx-1", 10)
    ending = script.agent("agent.shutdown", "sbx-1", reason="done", timestamp=script.clock)
    held_back, delivered = events[3:6], [*events[:3], *events[6:], ending]
    twice = script.messages("sbx-2", 4)
    twice[2] = twice[2].model_copy(update={"sequence": 2})
    await running.emit([*delivered, *twice])
    await running.stored(12)
    audit = await _settled(running)
    by_source = {source.source: source for source in audit.sources}
    gap = by_source["/sandherd/sandbox/sbx-1"]
    assert [(gap.first, gap.last) for gap in gap.gaps] == [(4, 6)]
    assert (gap.stored, gap.highest, gap.missing, gap.closed, gap.sandbox) == (8, 11, 3, True, "sbx-1")
    other = by_source["/sandherd/sandbox/sbx-2"]
    assert [(gap.first, gap.last) for gap in other.gaps] == [(3, 3)]
    assert (audit.missing, audit.event_count, audit.source_count, audit.dead) == (4, 12, 2, 0)
    await running.emit(held_back)
    await running.stored(15)
    audit = await _settled(running, sandbox="sbx-1")
    assert (audit.missing, audit.source_count, audit.sources[0].stored) == (0, 1, 11)


async def _settled(running: Any, **requested: Any) -> Any:
    """An audit without events in transit."""
    while True:
        audit = await running.ask(GetAudit(**requested))
        if audit.unstored == 0:
            return audit
        await asyncio.sleep(0.01)


async def test_audit_of_a_sandbox_covers_every_source_about_it(running: Any, script: Any) -> None:
    """The sources are the worker, the spawner's records of sandbox and task, and the relay's of messages; no other."""
    fields = {"source": "/sandherd/message-relay/message-1", "message_id": "message-1"}
    events = [
        *script.life("task-1", "sbx-1"),
        *script.messages("sbx-1", 2),
        script.emit("message.queued", "sbx-1", **fields, content_length=1),
        *script.life("task-2", "sbx-2"),
        *script.messages("sbx-2", 2),
    ]
    await running.emit(events)
    await running.stored(len(events))
    audit = await _settled(running, sandbox="sbx-1")
    assert {source.source: (source.stored, source.closed) for source in audit.sources} == {
        "/sandherd/sandbox/sbx-1": (2, False),
        "/sandherd/spawner/sbx-1": (5, True),
        "/sandherd/spawner/task-1": (4, True),
        "/sandherd/message-relay/message-1": (1, False),
    }
    assert (audit.source_count, audit.event_count, audit.missing) == (4, 12, 0)


async def test_output_is_paged(running: Any) -> None:
    """Each chunk of this sandbox comes once, in order, with any limit; invalid UTF-8 is replaced."""
    chunks = [f"line {place}\n".encode() for place in range(25)] + [b"\xff\xfe\x1b[0m"]
    for sandbox, fields in (("sbx-1", chunks), ("sbx-2", [b"other"])):
        bus = await running.bus(Principal.WORKER, sandbox=sandbox)
        for place, chunk in enumerate(fields):
            await bus.publish(OUTPUT.fill(project="default", sandbox=sandbox), chunk, msg_id=f"{sandbox}-{place}")
    shown: list[str] = []
    question = GetOutput(sandbox="sbx-1", limit=10)
    while True:
        page = await running.ask(question, "default")
        shown += [chunk.text for chunk in page.chunks]
        if page.next_cursor is None:
            break
        question = question.model_copy(update={"cursor": page.next_cursor})
    assert shown == [chunk.decode(errors="replace") for chunk in chunks]
    assert (await running.ask(GetOutput(sandbox="sbx-1"), "other")).chunks == []


async def test_long_output_is_paged(running: Any) -> None:
    """Control characters take six times the space in JSON: pages have fewer chunks, and no byte is lost."""
    bus = await running.bus(Principal.WORKER, sandbox="sbx-1")
    chunk = b"\x1b" * 100_000
    for place in range(4):
        await bus.publish(OUTPUT.fill(project="default", sandbox="sbx-1"), chunk, msg_id=str(place))
    seen, cursor = 0, None
    while True:
        page = await running.ask(GetOutput(sandbox="sbx-1", cursor=cursor), "default")
        seen += sum(len(chunk.text) for chunk in page.chunks)
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == 400_000


async def test_dead_letters_are_listed_and_retried(running: Any, script: Any) -> None:
    """The newest come first, payloads only by number; a letter that is valid now leaves DEAD for the history."""
    bus = await running.bus(Principal.WORKER, sandbox="sbx-1")
    good = script.messages("sbx-1", 3)
    subject = event_subject("default", "sbx-1", "agent.message")
    for place in range(3):
        await bus.publish(subject, json.dumps({"bad": place}).encode(), msg_id=f"bad-{place}")
    await running.emit(good)
    await running.stored(3)
    letters = await _dead(running, 3)
    assert [letter.payload for letter in letters.letters] == [None] * 3
    assert [letter.number for letter in letters.letters] == [3, 2, 1]
    assert {letter.reason.code for letter in letters.letters} == {Code.INVALID_FIELD}
    shown = [(await running.ask(ListDeadLetters(number=number))).letters[0].payload for number in (1, 2, 3)]
    # Batches are handled at the same time, so that a later letter may be given up earlier.
    assert sorted(json.loads(payload)["bad"] for payload in shown) == [0, 1, 2]
    first = await running.ask(ListDeadLetters(limit=2))
    second = await running.ask(ListDeadLetters(limit=2, cursor=first.next_cursor))
    assert [letter.number for letter in (*first.letters, *second.letters)] == [3, 2, 1]
    assert (await running.ask(RequeueEventIngest(number=1))).outcome == "dead"
    assert (await running.ask(ListDeadLetters(service="spawner"))).letters == []
    with pytest.raises(RefusedError) as refused:
        await running.ask(ListDeadLetters(number=99))
    assert refused.value.problem.code is Code.NOT_FOUND


async def _dead(running: Any, count: int) -> Any:
    while True:
        letters = await running.ask(ListDeadLetters())
        if len(letters.letters) == count:
            return letters
        await asyncio.sleep(0.01)


async def test_dead_letter_that_has_become_valid_is_stored(
    running: Any, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event of an unknown type stays in DEAD until its type is known; then it is stored, once."""
    known = dict(EVENTS)
    [event] = script.messages("sbx-1", 1)
    monkeypatch.setattr(base, "EVENTS", {name: model for name, model in known.items() if name != "agent.message"})
    await running.emit([event])
    await _dead(running, 1)
    monkeypatch.setattr(base, "EVENTS", known)
    assert (await running.ask(RequeueEventIngest(number=1))).outcome == "done"
    await running.stored(1)
    await _dead(running, 0)


async def test_requests_without_the_database_are_refused_at_once(world: Any, script: Any, postgres_server: Any) -> None:
    """Without Postgres a request is an error with the remedy, and readiness fails; afterwards all is stored, once."""
    async with world.service().running() as service, aiohttp.ClientSession() as session:
        before, during = script.messages("sbx-1", 5), script.messages("sbx-1", 50)
        await world.emit(before)
        await world.stored(5)
        await postgres_server.kill()
        try:
            await world.emit(during)
            await _until_ready(session, service.http_port, 503)
            for question in (ListEvents(), GetTrajectory(sandbox="sbx-1"), ListPastTasks(), GetAudit()):
                with pytest.raises(RefusedError) as refused:
                    await asyncio.wait_for(world.ask(question), PATIENCE / 2)  # it may take as long as a whole PATIENCE
                assert refused.value.problem.code is Code.UNAVAILABLE
                assert refused.value.problem.remedy
        finally:
            await postgres_server.restart()
        await world.stored(55)
        await _until_ready(session, service.http_port, 200)
        audit = await _settled(world)
        assert (audit.missing, audit.event_count, audit.dead) == (0, 55, 0)


async def _until_ready(session: aiohttp.ClientSession, port: int, status: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                if answer.status == status:
                    return
            await asyncio.sleep(0.02)


async def test_service_starts_without_the_database(world: Any, script: Any, postgres_server: Any) -> None:
    """A service that is started without Postgres waits, and then migrates, creates partitions and catches up."""
    await postgres_server.create_database("empty")
    world.postgres = postgres_server.url("empty")
    try:
        await postgres_server.kill()
        events = script.messages("sbx-1", 20)
        async with world.service().running() as service:
            await world.emit(events)
            assert "postgres" in service.health.problems()
            await postgres_server.restart()
            await _until(partial(_healthy, service))
            await world.stored(20)
    finally:
        await postgres_server.restart()
        await drop_database(postgres_server, "empty")


async def _healthy(service: Any) -> bool:
    return not service.health.problems()


async def _until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.02)


async def _drop_all(connection: asyncpg.Connection) -> None:
    """Drop all tables. Postgres ends this, or an index that is being created, if they wait for each other."""
    while True:
        with suppress(asyncpg.DeadlockDetectedError):
            await connection.execute("drop schema public cascade; create schema public")
            return


async def test_emptied_database_is_recreated(world: Any, script: Any) -> None:
    """Tables that were dropped under a running service are created again, rather than leaving it ready and useless."""
    async with world.service().running() as service:
        await world.emit(script.messages("sbx-1", 3))
        await world.stored(3)
        connection = await asyncpg.connect(world.postgres)
        await _drop_all(connection)
        await connection.close()
        await world.emit(script.messages("sbx-1", 4))
        await _until(partial(_has_tables, world.postgres))
        await world.stored(4)
        await _until(partial(_healthy, service))


async def _has_tables(url: str) -> bool:
    connection = await asyncpg.connect(url)
    try:
        return bool(await connection.fetchval("select to_regclass('sources') is not null"))
    finally:
        await connection.close()


async def test_largest_message_of_the_broker_is_handled(running: Any, script: Any) -> None:
    """A message that is too large for DEAD with its reason goes there without its end; later ones are stored."""
    bus = await running.bus(Principal.MONITOR)
    large = b"x" * 1_048_300
    await bus.publish(event_subject("default", "sbx-1", "monitor.idle_found"), large, msg_id="large")
    await running.emit(script.messages("sbx-1", 3))
    await running.stored(3)
    letters = await _dead(running, 1)
    assert (letters.letters[0].reason.code, letters.letters[0].size) == (Code.TOO_LARGE, len(large))
    assert (await running.ask(ListDeadLetters(number=1))).letters[0].payload.startswith("xxx")
