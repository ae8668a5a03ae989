"""Routes about one branch: its state, push, pull request, merge and deletion."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from fastapi.responses import JSONResponse

from gateway.request_models import body_of, part_of
from gateway.routes.route_replies import Accepted, accepted_response
from gateway.sessions import ApproveSession, ReadSession, Session, WorkSession
from sandherd.client.errors import HerdError, validated
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import (
    BranchView,
    DeleteBranch,
    ListBranches,
    MergeBranch,
    OpenPullRequest,
    PushBranch,
    Request,
)

router: Final = APIRouter(tags=["branches"])
_FIELDS_OF_PATH_AND_CALLER: Final = frozenset({"branch", "requested_by"})
PushBody: Any = body_of(PushBranch, "PushBody", without=_FIELDS_OF_PATH_AND_CALLER)
PullRequestBody: Any = body_of(OpenPullRequest, "PullRequestBody", without=_FIELDS_OF_PATH_AND_CALLER)
MergeBody: Any = body_of(MergeBranch, "MergeBody", without=_FIELDS_OF_PATH_AND_CALLER)
DeleteBranchQuery: Any = part_of(DeleteBranch, "DeleteBranchQuery", without=_FIELDS_OF_PATH_AND_CALLER)
BranchNamed = Annotated[str, Path(pattern="^br-[0-9a-f]{20}$")]
"""The id of a branch. Its name is not used in paths because it may have slashes."""


@router.get("/branches/{branch}")
async def get_branch(session: ReadSession, branch: BranchNamed) -> BranchView:
    """A branch by its id."""
    branch_list = await session.herd.connection.request(validated(ListBranches, branch=branch))
    if not branch_list.branches:
        raise HerdError.of(
            Code.NOT_FOUND, f"there is no branch {branch}", field="branch", remedy="see /api/v1/branches"
        )
    return branch_list.branches[0]


@router.post("/branches/{branch}/push", status_code=202, response_model=Accepted)
async def push_branch(session: WorkSession, branch: BranchNamed, body: PushBody | None = None) -> JSONResponse:
    """Push a branch as soon as possible. `approved_commit` approves changed paths, which needs the role `approve`."""
    if body is not None and body.approved_commit is not None:
        session.check("approve")
    return await _branch_action(session, PushBranch, branch, body)


@router.post("/branches/{branch}/pull-request", status_code=202, response_model=Accepted)
async def open_pull_request(
    session: WorkSession, branch: BranchNamed, body: PullRequestBody | None = None
) -> JSONResponse:
    """Open the branch's pull request, or update it."""
    return await _branch_action(session, OpenPullRequest, branch, body)


@router.post("/branches/{branch}/merge", status_code=202, response_model=Accepted)
async def merge_branch(session: ApproveSession, branch: BranchNamed, body: MergeBody | None = None) -> JSONResponse:
    """Merge the branch's pull request once its forge permits it."""
    return await _branch_action(session, MergeBranch, branch, body)


@router.delete("/branches/{branch}", status_code=202, response_model=Accepted)
async def delete_branch(
    session: WorkSession, branch: BranchNamed, query: Annotated[DeleteBranchQuery, Query()]
) -> JSONResponse:
    """Delete a branch in the herd, and in its repository if it was pushed; with `where=here`, only in the herd."""
    return await _branch_action(session, DeleteBranch, branch, query)


async def _branch_action(session: Session, action: type[Request[Any]], branch: str, body: Any) -> JSONResponse:
    fields = {} if body is None else body.model_dump(exclude_unset=True)
    await session.herd.connection.request(validated(action, branch=branch, requested_by=session.caller.name, **fields))
    return accepted_response(branch, f"/branches/{branch}")
