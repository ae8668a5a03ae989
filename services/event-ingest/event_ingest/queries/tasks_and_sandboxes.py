"""`tasks` and `sandboxes`: which tasks and sandboxes are in the history?"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from event_ingest.database import Connection
from event_ingest.queries.pages import Conditions, FittedPage, ItemT, fit_page, limited_statement, project_filter
from sandherd.contracts.requests import (
    ListPastSandboxes,
    ListPastTasks,
    SandboxList,
    SandboxView,
    TaskList,
    TaskView,
)
from sandherd.contracts.requests.live_state import SortOrder
from sandherd.contracts.states import SANDBOX_ENDED, TASK_ENDED, SandboxState, TaskState
from sandherd.service.cursors import Position, read_cursor, read_time, write_cursor

_POSITION_TYPES: Final = (str, str, str)
"""The types of the values in a cursor."""
_SORTS_BY_TIME: Final = ("newest", "oldest")
_FIRST_CONDITION_PARAMETER: Final = 3

# `size` estimates the bytes of a view.
_TASKS: Final = """
select t.*, submitted_at as at, task as name,
    704 + octet_length(concat(text, result::text, depends_on::text, labels::text)) as size
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


_HAS_LABELS: Final = "labels @> {}::jsonb"
_TASK_HAS_LABELS: Final = (
    "exists (select from tasks t where t.project = b.project and t.task = b.task and t.labels @> {}::jsonb)"
)


@dataclass(frozen=True)
class _Columns:
    """The columns for time and name of one of the two tables, and its condition for labels."""

    at: str
    name: str
    has_labels: str

    def sorted_by(self, sort: SortOrder) -> str:
        """The column that a list is sorted by, before project and name."""
        return {"name": self.name, "state": "state"}.get(sort, self.at)


_TASK_COLUMNS: Final = _Columns("submitted_at", "task", _HAS_LABELS)
_SANDBOX_COLUMNS: Final = _Columns("requested_at", "sandbox", _TASK_HAS_LABELS)


async def list_tasks(connection: Connection, request: ListPastTasks, project: str, max_bytes: int) -> TaskList:
    """Tasks in the requested order. Raises `ContractError` for an invalid cursor."""
    conditions = _conditions(request, project, _TASK_COLUMNS, request.task)
    rows = await _fetch_rows(connection, _TASKS, conditions, request, max_bytes)
    page = await _fit_page(rows, _task_view, request.limit, max_bytes)
    return TaskList(tasks=page.items, next_cursor=_next_cursor(request, project, page))


async def list_sandboxes(
    connection: Connection, request: ListPastSandboxes, project: str, max_bytes: int
) -> SandboxList:
    """Sandboxes in the requested order. Raises `ContractError` for an invalid cursor."""
    conditions = _conditions(request, project, _SANDBOX_COLUMNS, request.sandbox)
    rows = await _fetch_rows(connection, _SANDBOXES, conditions, request, max_bytes)
    page = await _fit_page(rows, _sandbox_view, request.limit, max_bytes)
    return SandboxList(sandboxes=page.items, next_cursor=_next_cursor(request, project, page))


async def _fetch_rows(
    connection: Connection,
    statement: str,
    conditions: Conditions,
    request: ListPastTasks | ListPastSandboxes,
    max_bytes: int,
) -> list[Any]:
    first = request.sort if request.sort in {"name", "state"} else "at"
    direction = "desc" if request.sort == "newest" else "asc"
    order = ", ".join(f"{column} {direction}" for column in (first, "project", "name"))
    paged = limited_statement(f"{statement}{conditions}", order, "$1", "$2")
    return list(await connection.fetch(paged, request.limit, max_bytes, *conditions.values))


async def _fit_page(
    rows: list[Any], build_view: Callable[[Any], ItemT], limit: int, max_bytes: int
) -> FittedPage[Any, ItemT]:
    return await fit_page(
        rows, build_view, limit=limit, max_bytes=max_bytes, available=rows[0]["available"] if rows else 0
    )


def _conditions(
    request: ListPastTasks | ListPastSandboxes, project: str, columns: _Columns, name: str | None
) -> Conditions:
    conditions = Conditions(_FIRST_CONDITION_PARAMETER)
    if project_filter(project) is not None:
        conditions.add("project = {}", project)
    if name is not None:
        conditions.add(f"{columns.name} = {{}}", name)
    if request.wanted_states:
        conditions.add("state = any({}::text[])", [state.value for state in request.wanted_states])
    if request.since is not None:
        conditions.add(f"{columns.at} >= {{}}", request.since)
    if request.labels:
        conditions.add(columns.has_labels, json.dumps(request.labels))
    if isinstance(request, ListPastTasks) and request.contains:
        conditions.add("position(lower({}) in lower(concat(task, ' ', text))) > 0", request.contains)
    after = read_cursor(request, project, request.cursor, _POSITION_TYPES)
    if after is not None:
        _add_position(conditions, request.sort, columns, after)
    return conditions


def _add_position(conditions: Conditions, sort: SortOrder, columns: _Columns, after: Position) -> None:
    """Add the condition that rows come after the position."""
    value, project, name = after
    operator, by_time = "<" if sort == "newest" else ">", sort in _SORTS_BY_TIME
    kind = "timestamptz" if by_time else "text"
    condition = f"({columns.sorted_by(sort)}, project, {columns.name}) {operator} ({{}}::{kind}, {{}}, {{}})"
    conditions.add(condition, read_time(value) if by_time else value, project, name)


def _next_cursor(request: ListPastTasks | ListPastSandboxes, project: str, page: FittedPage[Any, Any]) -> str | None:
    if not page.has_more:
        return None
    last = page.rows[-1]
    value = last["at"].isoformat() if request.sort in _SORTS_BY_TIME else last[request.sort]
    return write_cursor(request, project, [value, last["project"], last["name"]])


def _task_view(row: Any) -> TaskView:
    state = TaskState(row["state"])
    # A sandbox or start from before the last retry belongs to an earlier attempt.
    retry_sequence = row["retried_sequence"]
    return TaskView(
        project=row["project"],
        task=row["task"],
        state=state,
        attempt=row["attempt"],
        text=row["text"] or "",
        harness=row["harness"] or "",
        runtime=row["runtime"] or "",
        sandbox=row["sandbox"] if row["sandbox_sequence"] > retry_sequence else None,
        submitted_at=row["submitted_at"],
        started_at=row["started_at"] if row["started_sequence"] > retry_sequence else None,
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
        labels=json.loads(row["labels"] or "{}"),
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
