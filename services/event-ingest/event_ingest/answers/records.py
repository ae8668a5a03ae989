"""`tasks` and `sandboxes`: which were there?"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from event_ingest.answers.cursors import Place, read_cursor, write_cursor
from event_ingest.answers.paging import Conditions, Cut, ItemT, bounded, cut, scope
from event_ingest.database import Connection
from sandherd.contracts.requests import (
    PastSandboxes,
    PastTasks,
    SandboxList,
    SandboxView,
    TaskList,
    TaskView,
)
from sandherd.contracts.states import SANDBOX_ENDED, TASK_ENDED, SandboxState, TaskState

_PLACE: Final = (str, str, str)
_FIRST_FREE: Final = 3

_TASKS: Final = """
select t.*, submitted_at as at, task as name,
    640 + octet_length(concat(text, result::text, depends_on::text)) as size
from tasks t where state <> ''
"""
_SANDBOXES: Final = """
select b.*, requested_at as at, sandbox as name, 512 as size,
    heard.stored, heard.last_event_at, heard.last_heartbeat_at
from sandboxes b cross join lateral (
    select coalesce(sum(stored), 0)::bigint as stored, max(last_heartbeat) as last_heartbeat_at,
        max(last_at) filter (where source = '/sandherd/sandbox/' || b.sandbox) as last_event_at
    from sources s where s.entity = b.sandbox and s.project = b.project
) as heard where state is not null and requested_at is not null
"""


@dataclass(frozen=True)
class _Columns:
    """What the two tables call the same things."""

    at: str
    name: str


async def answer_tasks(connection: Connection, question: PastTasks, project: str, budget: int) -> TaskList:
    """Tasks, newest first. Raises `ContractError` for a cursor that means nothing."""
    conditions = _conditions(question, project, _Columns("submitted_at", "task"), question.task)
    rows = await _rows(connection, _TASKS, conditions, question.limit, budget)
    page = await _cut(rows, _task_view, question.limit, budget)
    return TaskList(tasks=page.items, next_cursor=_next_cursor(question, project, page))


async def answer_sandboxes(connection: Connection, question: PastSandboxes, project: str, budget: int) -> SandboxList:
    """Sandboxes, newest first. Raises `ContractError` for a cursor that means nothing."""
    conditions = _conditions(question, project, _Columns("requested_at", "sandbox"), question.sandbox)
    rows = await _rows(connection, _SANDBOXES, conditions, question.limit, budget)
    page = await _cut(rows, _sandbox_view, question.limit, budget)
    return SandboxList(sandboxes=page.items, next_cursor=_next_cursor(question, project, page))


async def _rows(connection: Connection, statement: str, conditions: Conditions, limit: int, budget: int) -> list[Any]:
    paged = bounded(f"{statement}{conditions}", "at desc, project desc, name desc", "$1", "$2")
    return list(await connection.fetch(paged, limit, budget, *conditions.values))


async def _cut(rows: list[Any], view: Callable[[Any], ItemT], limit: int, budget: int) -> Cut[Any, ItemT]:
    return await cut(rows, view, limit=limit, budget=budget, found=rows[0]["found"] if rows else 0)


def _conditions(question: PastTasks | PastSandboxes, project: str, columns: _Columns, name: str | None) -> Conditions:
    conditions = Conditions(_FIRST_FREE)
    if scope(project) is not None:
        conditions.add("project = {}", project)
    if name is not None:
        conditions.add(f"{columns.name} = {{}}", name)
    if question.state is not None:
        conditions.add("state = {}", question.state.value)
    after = read_cursor(question, project, question.cursor, _PLACE)
    if after is not None:
        beyond = f"({columns.at}, project, {columns.name}) < ({{}}::timestamptz, {{}}, {{}})"
        conditions.add(beyond, *_read_place(after))
    return conditions


def _read_place(place: Place) -> tuple[datetime, str, str]:
    at, project, name = place
    return datetime.fromisoformat(at), project, name


def _next_cursor(question: PastTasks | PastSandboxes, project: str, page: Cut[Any, Any]) -> str | None:
    if not page.more:
        return None
    last = page.rows[-1]
    return write_cursor(question, project, [last["at"].isoformat(), last["project"], last["name"]])


def _task_view(row: Any) -> TaskView:
    state = TaskState(row["state"])
    retried = row["retried_sequence"]
    return TaskView(
        project=row["project"],
        task=row["task"],
        state=state,
        attempt=row["attempt"],
        text=row["text"] or "",
        harness=row["harness"] or "",
        runtime=row["runtime"] or "",
        sandbox=row["sandbox"] if row["sandbox_sequence"] > retried else None,
        submitted_at=row["submitted_at"],
        started_at=row["started_at"] if row["started_sequence"] > retried else None,
        ended_at=row["state_at"] if state in TASK_ENDED else None,
        error=row["error"],
        error_type=row["error_type"],
        result=json.loads(row["result"] or "{}"),
        priority=row["priority"] or "normal",
        deadline=row["deadline"],
        depends_on=json.loads(row["depends_on"] or "[]"),
        max_attempts=max(row["max_attempts"] or 1, row["attempt"]),
        not_before=row["not_before"],
        profile=row["profile"],
    )


def _sandbox_view(row: Any) -> SandboxView:
    state = SandboxState(row["state"])
    return SandboxView(
        project=row["project"],
        sandbox=row["sandbox"],
        state=state,
        task=row["task"],
        attempt=row["attempt"],
        runtime=row["runtime"] or "",
        isolation=row["isolation"],
        requested_at=row["requested_at"],
        running_at=row["running_at"],
        ended_at=row["state_at"] if state in SANDBOX_ENDED else None,
        reason=row["reason"],
        error=row["error"],
        events=row["stored"],
        last_event_at=row["last_event_at"],
        last_heartbeat_at=row["last_heartbeat_at"],
        expires_at=row["expires_at"],
        profile=row["profile"],
        warm=bool(row["warm"]),
    )
