"""The views for SQL: their columns never change, they show the stored data, and use indexes and partitions."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg

from event_ingest.schema import ensure_partitions, partition_name
from event_ingest.sql_views import SCHEMA, VIEWS
from tests.integration.event_ingest.conftest import BEGUN

COMMITTED = Path(__file__).with_name("views_v1.json")
"""The columns of this version with their types, which never change."""
PAGE = Path(__file__).parents[3] / "docs/sql.md"
_COLUMNS = """
select c.relname as view, a.attname as name, format_type(a.atttypid, a.atttypmod) as type
from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace
where n.nspname = $1 and c.relkind = 'v' and a.attnum > 0 order by c.relname, a.attnum
"""
_CORRELATION = "cor-1"


async def test_columns_are_those_of_the_version(postgres: str) -> None:
    """Views, columns and types are as committed and as documented; the documented queries run."""
    connection = await asyncpg.connect(postgres)
    try:
        rows = await connection.fetch(_COLUMNS, SCHEMA)
        queries = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
        for query in queries:
            await connection.fetch(query)
    finally:
        await connection.close()
    stored: dict[str, list[list[str]]] = {}
    for row in rows:
        stored.setdefault(row["view"], []).append([row["name"], row["type"]])
    assert queries
    assert stored == json.loads(COMMITTED.read_text())
    assert stored == {view.name: [[column.name, column.sql_type] for column in view.columns] for view in VIEWS}


def _happened(script: Any) -> list[Any]:
    """The events of a task with its sandbox, a message, an intervention with its outcome, a file, and usage."""
    queued = script.emit(
        "message.queued",
        "sbx-1",
        "/sandherd/message-relay/sbx-1/m-1",
        message_id="m-1",
        message_type="user_message",
        content_length=4,
    )
    decided = script.emit(
        "monitor.intervention_decided", "sbx-1", "/sandherd/monitor/sbx-1", rule="loop", step="nudge", message="Stop.",
        message_id="m-1", correlation_id=_CORRELATION,
    )  # fmt: skip
    outcome = script.emit(
        "monitor.intervention_outcome", "sbx-1", "/sandherd/monitor/sbx-1", correlation_id=_CORRELATION,
        outcome="obeyed", recovered=True,
    )  # fmt: skip
    edited = script.agent("agent.file_edited", "sbx-1", file_path="a.py", change_type="created", lines_added=2)
    used = script.agent("agent.usage", "sbx-1", model="m", input_tokens=7, cost_micro_usd=9)
    return [*script.life("task-1", "sbx-1"), queued, decided, outcome, edited, used]


async def test_owner_of_the_tables_reads_all_projects(history: Any, script: Any) -> None:
    """The owner sees the rows of all projects; an invalid number is null, and affects no other row."""
    strange = script.agent("agent.usage", "sbx-2", project="other", model="m", input_tokens=8)
    await history.deliver([*_happened(script), strange])
    connection = await asyncpg.connect(history.url)
    try:
        await connection.execute(
            "update events set envelope = replace(envelope::text, '\"input_tokens\":8', '\"input_tokens\":true')::json "
            "where project = 'other'"
        )
    finally:
        await connection.close()
    reports = await history.rows(f"select input_tokens from {SCHEMA}.usage order by sandbox_id")
    assert [report["input_tokens"] for report in reports] == [7, None]
    [task] = await history.rows(f"select * from {SCHEMA}.tasks")
    assert (task["task_id"], task["state"], task["sandbox_id"]) == ("task-1", "completed", "sbx-1")
    assert task["ended_at"] == task["state_at"]
    [box] = await history.rows(f"select * from {SCHEMA}.sandboxes")
    assert (box["sandbox_id"], box["state"], box["task_id"]) == ("sbx-1", "terminated", "task-1")
    [message] = await history.rows(f"select * from {SCHEMA}.messages")
    assert (message["message_id"], message["state"]) == ("m-1", "queued")
    [intervention] = await history.rows(f"select * from {SCHEMA}.interventions")
    assert (intervention["step"], intervention["outcome"], intervention["recovered"]) == ("nudge", "obeyed", True)
    [edit] = await history.rows(f"select * from {SCHEMA}.files")
    assert (edit["file_path"], edit["lines_added"], edit["is_binary"]) == ("a.py", 2, False)
    events = await history.rows(f"select * from {SCHEMA}.sandbox_events where sandbox_id = 'sbx-1' order by id")
    assert "agent.usage" in {event["event_type"] for event in events}
    projects = await history.rows(f"select distinct project from {SCHEMA}.sandbox_events order by project")
    assert [row["project"] for row in projects] == ["default", "other"]


def _plan_nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", []) for node in _plan_nodes(child))]


_STORED = f"""
insert into events (id, stream_sequence, sequence, size, time, project, entity, type, source, envelope)
select {SCHEMA}.first_id(at), n, n, 2, at, 'default', 'sbx-' || n % 47, case n % 50 when 0 then 'agent.file_edited'
    when 1 then 'agent.usage' else 'agent.message' end, '/sandherd/sandbox/sbx-' || n % 47, '{{}}'
from (select n, $1::timestamptz + n * interval '1 s' as at from generate_series(1, 5000) as n)
"""
_INDEXES = (
    ("sandbox_events", "sandbox_id = 'sbx-1'", "entity_stream_sequence_idx"),
    ("files", f"created_at >= '{BEGUN}'", "project_type_time_idx"),
    ("usage", f"created_at >= '{BEGUN}'", "project_time_idx"),
)
"""A query of a view, and the index of a partition that it must use."""


async def test_queries_use_indexes_of_the_days_that_they_read(postgres: str) -> None:
    """Only the partition of the first ids' day is read, by an index of the sandbox, or of project and time."""
    connection = await asyncpg.connect(postgres)
    try:
        await ensure_partitions(connection, BEGUN)
        await connection.execute(_STORED, BEGUN)
        await connection.execute("analyze events")
        for view, condition, index in _INDEXES:
            plan = await connection.fetchval(
                f"explain (format json) select * from {SCHEMA}.{view} where {condition} "
                f"and id >= {SCHEMA}.first_id('{BEGUN}') and id < {SCHEMA}.first_id('{BEGUN + timedelta(hours=2)}')"
            )
            nodes = _plan_nodes(json.loads(plan)[0]["Plan"])
            of_events = {node["Relation Name"] for node in nodes if "Relation Name" in node}
            assert {name for name in of_events if name.startswith("events")} == {partition_name(BEGUN.date())}
            assert [node for node in nodes if index in node.get("Index Name", "")], nodes
    finally:
        await connection.close()
