"""`approvals`: which approvals do agents request, and how were they decided?"""

import json
from typing import Any, Final

from pydantic_core import to_json

from event_ingest.database import Connection
from event_ingest.queries.pages import Conditions, check_searchable, fit_page, limited_statement, project_filter
from sandherd.contracts.requests import ApprovalList, ApprovalView, ListApprovals
from sandherd.contracts.states import ApprovalState
from sandherd.service.cursors import read_cursor, read_time, write_cursor

_POSITION_TYPES: Final = (str, str, str, str)
"""The types of the values in a cursor."""
_FIRST_CONDITION_PARAMETER: Final = 3
_ORDER: Final = "requested_at desc, project desc, sandbox desc, approval desc"

# `size` estimates the bytes of a view.
_APPROVALS: Final = """
select a.*, b.task, m.state as answer_state, m.reason as answer_reason, e.envelope->'data'->'input' as input,
    1024 + octet_length(concat(a.tool, a.reason, a.decision_reason, m.reason, e.envelope->'data'->>'input')) as size
from approvals a
left join sandboxes b using (project, sandbox)
left join messages m on m.project = a.project and m.message = a.answer
left join events e on e.id = a.asked_in and e.project = a.project and e.entity = a.sandbox
where a.requested_at is not null
"""


async def list_approvals(connection: Connection, request: ListApprovals, project: str, max_bytes: int) -> ApprovalList:
    """Approvals, newest first. Raises `ContractError` for an invalid id or cursor."""
    check_searchable(request.approval_id, "approval_id")
    conditions = _conditions(request, project)
    statement = limited_statement(f"{_APPROVALS}{conditions}", _ORDER, "$1", "$2")
    rows = await connection.fetch(statement, request.limit, max_bytes, *conditions.values)
    available = rows[0]["available"] if rows else 0
    page = await fit_page(
        rows, lambda row: _view(row, max_bytes), limit=request.limit, max_bytes=max_bytes, available=available
    )
    cursor = write_cursor(request, project, _position(page.rows[-1])) if page.has_more else None
    return ApprovalList(approvals=page.items, next_cursor=cursor)


def _conditions(request: ListApprovals, project: str) -> Conditions:
    conditions = Conditions(_FIRST_CONDITION_PARAMETER)
    filters = {
        "project": project_filter(project),
        "sandbox": request.sandbox,
        "approval": request.approval_id,
        "state": None if request.state is None else request.state.value,
    }
    for name, value in filters.items():
        if value is not None:
            conditions.add(f"a.{name} = {{}}", value)
    after = read_cursor(request, project, request.cursor, _POSITION_TYPES)
    if after is not None:
        condition = "(a.requested_at, a.project, a.sandbox, a.approval) < ({}::timestamptz, {}, {}, {})"
        conditions.add(condition, read_time(after[0]), *after[1:])
    return conditions


def _position(row: Any) -> list[str]:
    return [row["requested_at"].isoformat(), row["project"], row["sandbox"], row["approval"]]


def _view(row: Any, max_bytes: int) -> ApprovalView:
    state = ApprovalState(row["state"])
    view = ApprovalView(
        project=row["project"],
        sandbox=row["sandbox"],
        approval_id=row["approval"],
        state=state,
        task=row["task"],
        tool=row["tool"] or "",
        input=json.loads(row["input"] or "{}"),
        reason=row["reason"],
        requested_at=row["requested_at"],
        expires_at=row["expires_at"],
        on_timeout=row["on_timeout"],
        decided_at=None if state is ApprovalState.PENDING else row["state_at"],
        decided_by=row["decided_by"],
        decision_reason=row["decision_reason"],
        outcome=row["outcome"],
        answer=row["answer"],
        answer_state=row["answer_state"],
        answer_reason=row["answer_reason"],
    )
    # Numbers may be longer when written as JSON again. A view over the limit would stop the list, so it has no input.
    return view.model_copy(update={"input": {}}) if len(to_json(view)) > max_bytes else view
