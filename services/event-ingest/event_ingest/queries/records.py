"""`tasks` and `sandboxes`: which tasks and sandboxes are in the history?"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from event_ingest.database import Connection
from event_ingest.queries.pages import Conditions, FittedPage, ItemT, fit_page, limited, project_filter
from sandherd.contracts.requests import (
    PastSandboxes,
    PastTasks,
    SandboxList,
    SandboxView,
    TaskList,
    TaskView,
)
from sandherd.contracts.states import SANDBOX_ENDED, TASK_ENDED, SandboxState, TaskState
from sandherd.service.cursors import Position, read_cursor, write_cursor

_POSITION_TYPES: Final = (str, str, str)
_FIRST_PARAMETER: Final = 3

_TASKS: Final = """
select t.*, submitted_at as at, task as name,
    640 + octet_length(concat(text, result::text, depends_on::text)) as size
from tasks t where state <> ''
"""
_SANDBOXES: Final = """
select b.*, requested_at as at, sandbox as name, 512 as size,
    totals.stored, totals.last_event_at, totals.last_heartbeat_at
from sandboxes b cross join lateral (
    select coalesce(sum(stored), 0)::bigint as stored, max(last_heartbeat) as last_heartbeat_at,
        max(last_at) filter (where source = '/sandherd/sandbox/' || b.sandbox) as last_event_at
    from sources s where s.entity = b.sandbox and s.project = b.project
) as totals where state is not null and requested_at is not null
"""


@dataclass(frozen=True)
class _Columns:
    """The names of the same columns in the two tables."""

    at: str
    name: str


async def list_tasks(connection: Connection, request: PastTasks, project: str, budget: int) -> TaskList:
    """Tasks, newest first. Raises `ContractError` for an invalid cursor."""
    conditions = _conditions(request, project, _Columns("submitted_at", "task"), request.task)
    rows = await _rows(connection, _TASKS, conditions, request.limit, budget)
    page = await _fit_page(rows, _task_view, request.limit, budget)
    return TaskList(tasks=page.items, next_cursor=_next_cursor(request, project, page))


async def list_sandboxes(connection: Connection, request: PastSandboxes, project: str, budget: int) -> SandboxList:
    """Sandboxes, newest first. Raises `ContractError` for an invalid cursor."""
    conditions = _conditions(request, project, _Columns("requested_at", "sandbox"), request.sandbox)
    rows = await _rows(connection, _SANDBOXES, conditions, request.limit, budget)
    page = await _fit_page(rows, _sandbox_view, request.limit, budget)
    return SandboxList(sandboxes=page.items, next_cursor=_next_cursor(request, project, page))


async def _rows(connection: Connection, statement: str, conditions: Conditions, limit: int, budget: int) -> list[Any]:
    paged = limited(f"{statement}{conditions}", "at desc, project desc, name desc", "$1", "$2")
    return list(await connection.fetch(paged, limit, budget, *conditions.values))


async def _fit_page(rows: list[Any], view: Callable[[Any], ItemT], limit: int, budget: int) -> FittedPage[Any, ItemT]:
    return await fit_page(rows, view, limit=limit, budget=budget, available=rows[0]["available"] if rows else 0)


def _conditions(request: PastTasks | PastSandboxes, project: str, columns: _Columns, name: str | None) -> Conditions:
    conditions = Conditions(_FIRST_PARAMETER)
    if project_filter(project) is not None:
        conditions.add("project = {}", project)
    if name is not None:
        conditions.add(f"{columns.name} = {{}}", name)
    if request.state is not None:
        conditions.add("state = {}", request.state.value)
    after = read_cursor(request, project, request.cursor, _POSITION_TYPES)
    if after is not None:
        condition = f"({columns.at}, project, {columns.name}) < ({{}}::timestamptz, {{}}, {{}})"
        conditions.add(condition, *_parse_position(after))
    return conditions


def _parse_position(position: Position) -> tuple[datetime, str, str]:
    at, project, name = position
    return datetime.fromisoformat(at), project, name


def _next_cursor(request: PastTasks | PastSandboxes, project: str, page: FittedPage[Any, Any]) -> str | None:
    if not page.more:
        return None
    last = page.rows[-1]
    return write_cursor(request, project, [last["at"].isoformat(), last["project"], last["name"]])


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
