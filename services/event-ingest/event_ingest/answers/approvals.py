"""`approvals`: what do agents ask leave for, and what came of it?"""

import json
from datetime import datetime
from typing import Any, Final

from pydantic_core import to_json

from event_ingest.answers.cursors import read_cursor, write_cursor
from event_ingest.answers.paging import Conditions, bounded, cut, scope
from event_ingest.answers.searched import check_searched
from event_ingest.database import Connection
from sandherd.contracts.requests import ApprovalList, ApprovalView, AskApprovals
from sandherd.contracts.states import ApprovalState

_PLACE: Final = (str, str, str, str)
_FIRST_FREE: Final = 3
_ORDER: Final = "requested_at desc, project desc, sandbox desc, approval desc"

_APPROVALS: Final = """
select a.*, b.task, m.state as answer_state, m.reason as answer_reason, e.envelope->'data'->'input' as input,
    1024 + octet_length(concat(a.tool, a.reason, a.decision_reason, m.reason, e.envelope->'data'->>'input')) as size
from approvals a
left join sandboxes b using (project, sandbox)
left join messages m on m.project = a.project and m.message = a.answer
left join events e on e.id = a.asked_in and e.project = a.project and e.entity = a.sandbox
where a.requested_at is not null
"""


async def answer_approvals(connection: Connection, question: AskApprovals, project: str, budget: int) -> ApprovalList:
    """Approvals, newest first. Raises `ContractError` for an id or a cursor that means nothing."""
    check_searched(question.approval_id, "approval_id")
    conditions = _conditions(question, project)
    statement = bounded(f"{_APPROVALS}{conditions}", _ORDER, "$1", "$2")
    rows = await connection.fetch(statement, question.limit, budget, *conditions.values)
    found = rows[0]["found"] if rows else 0
    page = await cut(rows, lambda row: _view(row, budget), limit=question.limit, budget=budget, found=found)
    cursor = write_cursor(question, project, _place(page.rows[-1])) if page.more else None
    return ApprovalList(approvals=page.items, next_cursor=cursor)


def _conditions(question: AskApprovals, project: str) -> Conditions:
    conditions = Conditions(_FIRST_FREE)
    wanted = {
        "project": scope(project),
        "sandbox": question.sandbox,
        "approval": question.approval_id,
        "state": None if question.state is None else question.state.value,
    }
    for name, value in wanted.items():
        if value is not None:
            conditions.add(f"a.{name} = {{}}", value)
    after = read_cursor(question, project, question.cursor, _PLACE)
    if after is not None:
        beyond = "(a.requested_at, a.project, a.sandbox, a.approval) < ({}::timestamptz, {}, {}, {})"
        conditions.add(beyond, datetime.fromisoformat(after[0]), *after[1:])
    return conditions


def _place(row: Any) -> list[str]:
    return [row["requested_at"].isoformat(), row["project"], row["sandbox"], row["approval"]]


def _view(row: Any, budget: int) -> ApprovalView:
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
    # Said with numbers that are longer once read, it must not hide what comes after it.
    return view.model_copy(update={"input": {}}) if len(to_json(view)) > budget else view
