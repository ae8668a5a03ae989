"""Handles requests about branches: list, push, delete."""

from collections.abc import Mapping
from typing import Any, Final

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import BranchList, BranchView, DeleteBranch, ListBranches, PushBranch, Request
from sandherd.contracts.states import BranchState
from sandherd.service.cursors import read_cursor, write_cursor
from sandherd.service.requests import Answerer, IncomingRequest
from spawner.live_state import LiveState
from spawner.records.availability import available
from spawner.repositories import branch_transitions
from spawner.repositories.branch_record import BranchRecord

ANSWERED: Final[Mapping[type[Request[Any]], int]] = {ListBranches: 4, PushBranch: 2, DeleteBranch: 2}
"""The requests handled here, and the maximum of each that a replica handles concurrently."""


_MAX_REPLY_BYTES: Final = 512 * 1024
"""Maximum bytes of a page, unless a single branch has more. A branch may have hundreds of paths with problems."""


class BranchRequestHandler:
    """The handlers of requests about branches. They raise `ContractError`."""

    def __init__(self, live: LiveState) -> None:
        self._live = live

    @property
    def handlers(self) -> dict[type[Request[Any]], Answerer]:
        """The handlers, one for each request in `ANSWERED`."""
        return {ListBranches: self.branches, PushBranch: self.push, DeleteBranch: self.delete}

    async def branches(self, incoming: IncomingRequest[ListBranches]) -> BranchList:
        """A page of the branches of a project, or of all projects."""
        request = incoming.request
        with available("branches"):
            await self._live.catch_up()
        matching = [view for view in self._live.branch_index.views() if _matches(view, incoming.project, request)]
        matching.sort(key=lambda record: (record.updated_at, record.key), reverse=True)
        after = read_cursor(request, incoming.project, request.cursor, (str,))
        remaining = [record for record in matching if after is None or _position(record) < after[0]]
        page = _first_views(remaining[: request.limit])
        has_more = len(remaining) > len(page)
        next_cursor = (
            write_cursor(request, incoming.project, [_position(remaining[len(page) - 1])]) if has_more else None
        )
        return BranchList(branches=page, next_cursor=next_cursor, truncated=has_more)

    async def push(self, incoming: IncomingRequest[PushBranch]) -> BranchView:
        """Request that a branch is pushed as soon as possible."""
        record = await load_branch(self._live, incoming.project, incoming.request.branch)
        if record.local:
            problem = f"{record.branch} belongs to a local repository, to which the spawner has no access"
            raise ContractError(Code.REFUSED, problem, field="branch", remedy=f"fetch branch {record.branch}")
        if record.state is not BranchState.LIVE:
            raise ContractError(
                Code.CONFLICT, f"{record.branch} is {record.state}", field="branch", remedy="name a live branch"
            )
        now, request = self._live.now(), incoming.request
        changed = await self._change(record, lambda held: branch_transitions.push_requested(held, request, now))
        if not branch_transitions.may_be_pushed(changed, request):
            problem = f"{record.branch} is now at commit {changed.commit[:12]}, but another commit was approved"
            raise ContractError(
                Code.CONFLICT,
                problem,
                field="approved_commit",
                remedy=f"compare branch {record.branch}, and approve again",
            )
        return changed.view()

    async def delete(self, incoming: IncomingRequest[DeleteBranch]) -> BranchView:
        """Request that a branch is deleted."""
        record, now = await load_branch(self._live, incoming.project, incoming.request.branch), self._live.now()
        changed = await self._change(
            record, lambda held: branch_transitions.delete_requested(held, incoming.request, now)
        )
        return changed.view()

    async def _change(self, record: BranchRecord, decide: branch_transitions.Decide) -> BranchRecord:
        with available("branches"):
            held = await self._live.branches.change(record.key, lambda newest, _: decide(newest))
        return held.record if held else record


async def load_branch(live: LiveState, project: str, branch: str) -> BranchRecord:
    """The branch with this id. Raises `ContractError`."""
    if project == FLEET:
        raise ContractError(
            Code.INVALID_FIELD, f"{FLEET!r} means all projects", field="project", remedy="name one project"
        )
    with available("branches"):
        held = await live.branches.load(f"{project}.{branch}")
    if held is None:
        raise ContractError(Code.NOT_FOUND, f"there is no branch {branch}", field="branch", remedy="list the branches")
    return held.record


def _matches(record: BranchRecord, project: str, request: ListBranches) -> bool:
    if project not in (FLEET, record.project) or (request.task is not None and request.task not in record.tasks):
        return False
    is_named = request.branch in (None, record.branch, record.id)
    return is_named and (not request.state or record.state in request.state)


def _first_views(records: list[BranchRecord]) -> list[BranchView]:
    """The views of the first records that fit into a reply, at least one."""
    views: list[BranchView] = []
    size = 0
    for record in records:
        view = record.view()
        size += len(view.model_dump_json())
        if views and size > _MAX_REPLY_BYTES:
            break
        views.append(view)
    return views


def _position(record: BranchRecord) -> str:
    """The record's position in the list: a text that is sorted by the time of its last update, then by its key."""
    return f"{record.updated_at.timestamp():017.6f} {record.key}"
