"""Damaged read tables are computed again from the events, while events are stored."""

import asyncio
from argparse import Namespace
from typing import Any

import asyncpg

from event_ingest.queries.verification import verify_tables
from event_ingest.rebuild import is_complete, rebuild_tables, run_command
from sandherd.contracts.requests import VerifyHistory

FLOOD = 8
DAMAGE = """
update tasks set state = 'running', text = 'nothing' where task in ('task-0', 'task-3', 'task-gone');
delete from sandboxes where sandbox = 'sbx-1';
update sandboxes set task = null, expires_at = now() where sandbox = 'sbx-2';
delete from messages; delete from approvals;
update sources set highest = 99, heartbeats = 7 where entity = 'sbx-4';
delete from sources where entity = 'task-5';
delete from events where entity = 'task-gone' and sequence = 1;
"""


async def test_damaged_rows_are_rebuilt_while_events_are_stored(history: Any, script: Any) -> None:
    """Values, rows and totals that were changed or deleted are restored; others stay, also new ones.

    An entity with an event that is no longer stored stays as it is.
    """
    events = [event for place in range(6) for event in script.life(f"task-{place}", f"sbx-{place}")]
    queued = script.emit(
        "message.queued", "sbx-1", "/sandherd/message-relay/sbx-1/m-1", message_id="m-1", message_type="user_message",
        content_length=4,
    )  # fmt: skip
    requested = script.asking("sbx-2", "a-1", expires_at=script.clock, on_timeout="deny")
    await history.deliver(
        [*events, queued, *requested, *script.life("task-gone", "sbx-gone"), script.heartbeat("sbx-4")]
    )
    before = await history.tables()
    connection = await asyncpg.connect(history.url)
    try:
        await connection.execute(DAMAGE)
        done, _ = await asyncio.gather(rebuild_tables(connection), _flood(history, script))
        after = await rebuild_tables(connection)
    finally:
        await connection.close()
    assert (done.rebuilt, done.not_rebuilt, after.rebuilt, after.not_rebuilt) == (6, 0, 0, 0)
    tables = await history.tables()
    counted = next(row for row in tables["sources"] if row["source"] == "/sandherd/sandbox/sbx-4")
    assert (counted["stored"], counted["highest"], counted["heartbeats"]) == (1 + FLOOD, 1 + FLOOD, 1 + FLOOD)
    before["sources"] = [row for row in before["sources"] if row["source"] != counted["source"]]
    for name, rows in before.items():
        assert [row for row in rows if row not in tables[name] and "task-gone" not in row.values()] == [], name
    gone = next(row for row in tables["tasks"] if row["task"] == "task-gone")
    assert (gone["state"], gone["text"]) == ("running", "nothing")
    async with history.database.reading(heavy=True) as reading:
        verified = await verify_tables(reading, VerifyHistory(limit=100), "default", 1_000_000)
    assert (verified.incomplete, verified.differences) == (1, [])


async def _flood(history: Any, script: Any) -> None:
    for place in range(FLOOD):
        await history.deliver([*script.life(f"new-{place}", f"box-{place}"), script.heartbeat("sbx-4")])


async def test_row_without_events_stays(history: Any) -> None:
    """A row without stored events stays: it may be all that is left of a task whose day was dropped."""
    connection = await asyncpg.connect(history.url)
    try:
        await connection.execute(
            "insert into messages (project, message, sandbox, state, state_sequence, state_at, message_type) "
            "values ('default', 'm-2', 'sbx-3', 'queued', 1, now(), 'user_message')"
        )
        printed = await run_command(connection, Namespace(project="default"))
    finally:
        await connection.close()
    assert printed == "1 compared, 0 rebuilt, 1 left as they are, as their events are incomplete\n"
    assert [row["message"] for row in (await history.tables())["messages"]] == ["m-2"]


def test_completeness() -> None:
    """An entity is complete if its sources have all numbers from 1 on, and as many as were counted."""
    pair, key, other = ("p", "e"), ("p", "s", "e"), ("p", "s2", "e")
    assert is_complete({key: (3, 3, 6)}, {key: (3, 3, 6)}, pair)
    assert is_complete({}, {key: (3, 3, 6)}, pair)
    assert not is_complete({key: (3, 3, 6)}, {key: (2, 3, 5)}, pair)
    assert not is_complete({}, {key: (2, 3, 5)}, pair)
    assert not is_complete({key: (3, 3, 6), other: (1, 1, 1)}, {key: (3, 3, 6)}, pair)
    assert not is_complete({}, {}, pair)
