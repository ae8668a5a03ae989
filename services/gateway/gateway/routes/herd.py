"""Routes about the whole project: events, approvals, monitor, budgets, branches, artifacts."""

import asyncio
import tempfile
from contextlib import ExitStack
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse, Response

from gateway.api_server import CONNECTION
from gateway.downloads import FileResponse
from gateway.request_models import body_of, part_of
from gateway.routes.route_replies import FILE_RESPONSE, STREAM_RESPONSE, Accepted, AfterHeader, Name, accepted_response
from gateway.sessions import ApproveSession, ReadSession
from sandherd.client.artifacts import EventArtifact
from sandherd.client.errors import HerdError, validated
from sandherd.contracts.commands import AnswerApproval, ApprovalId
from sandherd.contracts.errors import Code
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests import (
    ApprovalList,
    BranchList,
    BudgetList,
    EventList,
    ListApprovals,
    ListBranches,
    ListBudgets,
    ListEvents,
    MonitorReport,
)
from sandherd.contracts.states import ApprovalState

router: Final = APIRouter()
_NO_FIELDS: Final[frozenset[str]] = frozenset()
_FIELDS_OF_PATH_AND_CALLER: Final = frozenset({"message", "sandbox", "approval_id", "answered_by"})
_DOWNLOAD_SECONDS: Final = 600.0
_SEARCH_SECONDS: Final = 15.0
_MAX_MEMORY_BYTES: Final = 1024 * 1024  # a larger file is in a temporary file
EventQuery: Any = part_of(ListEvents, "EventQuery", without=_NO_FIELDS)
ApprovalQuery: Any = part_of(ListApprovals, "ApprovalQuery", without=_NO_FIELDS)
BranchQuery: Any = part_of(ListBranches, "BranchQuery", without=_NO_FIELDS)
BudgetQuery: Any = part_of(ListBudgets, "BudgetQuery", without=_NO_FIELDS)
DecisionBody: Any = body_of(AnswerApproval, "DecisionBody", without=_FIELDS_OF_PATH_AND_CALLER)


@router.get("/events", tags=["events"])
async def events(session: ReadSession, query: Annotated[EventQuery, Query()]) -> EventList:
    """Stored events of the project, oldest first."""
    return await session.herd.connection.request(validated(ListEvents, **query.model_dump(exclude_unset=True)))


@router.get("/events/stream", tags=["events"], response_class=Response, responses=STREAM_RESPONSE)
async def stream_events(session: ReadSession, after: str | None = None, last_event_id: AfterHeader = None) -> Response:
    """Stream events of the project after the position in `Last-Event-ID` or `after`; without a position, new events.

    The first message is `ready`, or `resync` if the stream no longer has the events after the position: then read the
    state again. The `id` of this message is the position at which the stream begins.
    """
    return session.backend.streams.open(session.caller, None, last_event_id or after)


@router.get("/approvals", tags=["approvals"])
async def approvals(session: ReadSession, query: Annotated[ApprovalQuery, Query()]) -> ApprovalList:
    """Approvals, newest first."""
    return await session.herd.connection.request(validated(ListApprovals, **query.model_dump(exclude_unset=True)))


@router.post("/sandboxes/{sandbox}/approvals/{approval}", status_code=202, response_model=Accepted, tags=["approvals"])
async def decide_approval(
    session: ApproveSession, sandbox: Name, approval: Annotated[ApprovalId, Path()], body: DecisionBody
) -> JSONResponse:
    """Grant or deny an approval. The first answer counts; its delivery is reported by events."""
    approval_list = await session.herd.connection.request(
        validated(ListApprovals, sandbox=sandbox, approval_id=approval)
    )
    _check_pending(approval_list, approval)
    message = session.name("msg")
    command = validated(
        AnswerApproval,
        message=message,
        sandbox=sandbox,
        approval_id=approval,
        answered_by=session.caller.name,
        **body.model_dump(exclude_unset=True),
    )
    await session.herd.connection.command(command, sandbox)
    return accepted_response(message, f"/events?source=/sandherd/message-relay/{message}")


def _check_pending(approval_list: ApprovalList, approval: str) -> None:
    remedy = "see /api/v1/approvals"
    if not approval_list.approvals:
        raise HerdError.of(Code.NOT_FOUND, f"there is no approval {approval}", field="approval", remedy=remedy)
    state = approval_list.approvals[0].state
    if state is not ApprovalState.PENDING:
        raise HerdError.of(Code.CONFLICT, f"approval {approval} is {state}", field="approval", remedy=remedy)


@router.get("/monitor/report", tags=["monitor"])
async def monitor_report(session: ReadSession) -> MonitorReport:
    """How much the live sandboxes of the project hinder each other, and which of them need a user."""
    return await session.herd.monitor_report()


@router.get("/budgets", tags=["budgets"])
async def budgets(session: ReadSession, query: Annotated[BudgetQuery, Query()]) -> BudgetList:
    """The budgets of the project and its tasks, and what was used of them."""
    return await session.herd.connection.request(validated(ListBudgets, **query.model_dump(exclude_unset=True)))


@router.get("/branches", tags=["branches"])
async def branches(session: ReadSession, query: Annotated[BranchQuery, Query()]) -> BranchList:
    """The branches that tasks work on, those that changed last first."""
    return await session.herd.connection.request(validated(ListBranches, **query.model_dump(exclude_unset=True)))


@router.get("/artifacts/{artifact}", tags=["artifacts"], response_class=Response, responses=FILE_RESPONSE)
async def download_artifact(
    session: ReadSession,
    request: Request,
    artifact: Name,
    task: SafeName | None = None,
    sandbox: SafeName | None = None,
) -> Response:
    """The bytes of an artifact that an event of the project refers to. Never show it as HTML: a sandbox wrote it."""
    reference = (await _find_artifact(session, artifact, task, sandbox)).reference
    with ExitStack() as stack:
        stack.enter_context(session.backend.downloads.reserve(session.caller.project, reference.size))
        request.scope[CONNECTION].extend(_DOWNLOAD_SECONDS)
        file = stack.enter_context(tempfile.SpooledTemporaryFile(max_size=_MAX_MEMORY_BYTES))
        async with asyncio.timeout(_DOWNLOAD_SECONDS):
            await session.herd.artifact(reference, file)
        headers = {"Content-Disposition": f'attachment; filename="{artifact}"', "Content-Length": str(reference.size)}
        return FileResponse(file, stack.pop_all(), headers)


async def _find_artifact(session: ReadSession, artifact: str, task: str | None, sandbox: str | None) -> EventArtifact:
    """Find the artifact.

    The search has a time limit, because for a name without a time it may read the whole history.
    """
    try:
        async with asyncio.timeout(_SEARCH_SECONDS):
            return await session.herd.find_artifact(artifact, task=task, sandbox=sandbox)
    except TimeoutError:
        remedy = "name its task or sandbox in the query"
        raise HerdError.of(Code.UNAVAILABLE, f"{artifact} was not found in time", remedy=remedy) from None
