"""Handles requests about pull requests: open, merge, poll the forge at once."""

from collections.abc import Mapping
from typing import Any, Final

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import (
    BranchView,
    CheckPullRequests,
    MergeBranch,
    OpenPullRequest,
    PullRequestChecks,
    Request,
)
from sandherd.contracts.states import BranchState
from sandherd.service.requests import Answerer, IncomingRequest
from spawner.forges.factory import Forges
from spawner.forges.faults import ForgeError
from spawner.live_state import LiveState
from spawner.pull_requests import pull_request_requests
from spawner.records.availability import available
from spawner.repositories.branch_record import BranchRecord
from spawner.repositories.branch_transitions import Decide
from spawner.repositories.request_handlers import load_branch

ANSWERED: Final[Mapping[type[Request[Any]], int]] = {OpenPullRequest: 2, MergeBranch: 2, CheckPullRequests: 2}
"""The requests handled here, and the maximum of each that a replica handles concurrently."""


class PullRequestHandler:
    """The handlers of requests about pull requests. They raise `ContractError`."""

    def __init__(self, live: LiveState, forges: Forges) -> None:
        self._live, self._forges = live, forges

    @property
    def handlers(self) -> dict[type[Request[Any]], Answerer]:
        """The handlers, one for each request in `ANSWERED`."""
        return {OpenPullRequest: self.open, MergeBranch: self.merge, CheckPullRequests: self.check}

    async def open(self, incoming: IncomingRequest[OpenPullRequest]) -> BranchView:
        """Request that the branch's pull request is opened or updated as soon as possible."""
        record, now = await self._load_usable(incoming.project, incoming.request.branch), self._live.now()
        request = incoming.request
        return await self._change(record, lambda held: pull_request_requests.open_requested(held, request, now))

    async def merge(self, incoming: IncomingRequest[MergeBranch]) -> BranchView:
        """Request that the branch's pull request is merged as soon as its forge permits the merge."""
        request, now = incoming.request, self._live.now()
        record = await self._load_usable(incoming.project, request.branch)
        if record.pull is not None and record.pull.shown is not None and record.pull.shown.state == "closed":
            raise ContractError(
                Code.CONFLICT,
                f"the pull request of {record.branch} was closed",
                field="branch",
                remedy=f"open another pull request of branch {record.branch}",
            )
        if request.commit not in (None, record.commit):
            raise ContractError(
                Code.CONFLICT,
                f"{record.branch} is at {record.commit[:12]} by now",
                field="commit",
                remedy=f"compare branch {record.branch}, and merge again",
            )
        return await self._change(record, lambda held: pull_request_requests.merge_requested(held, request, now))

    async def check(self, incoming: IncomingRequest[CheckPullRequests]) -> PullRequestChecks:
        """Request a poll of the pull requests that a forge has reported as changed, in all projects."""
        now = self._live.now()
        with available("branches"):
            await self._live.catch_up()
        known = [held.view for _, held in self._live.branch_index.items()]
        reported = [record for record in known if pull_request_requests.is_reported_by(record, incoming.request)]
        for record in reported:
            await self._change(record, lambda held: pull_request_requests.poll_hastened(held, now))
        return PullRequestChecks(branches=len(reported))

    async def _load_usable(self, project: str, branch: str) -> BranchRecord:
        """Load the branch. Raises `ContractError` if it can't have a pull request."""
        record = await load_branch(self._live, project, branch)
        name = record.branch
        if record.local:
            raise ContractError(
                Code.REFUSED,
                f"{name} belongs to a local repository, which has no pull requests",
                field="branch",
                remedy=f"fetch branch {name}",
            )
        self._require_forge(record)
        if record.state is not BranchState.LIVE:
            raise ContractError(Code.CONFLICT, f"{name} is {record.state}", field="branch", remedy="name a live branch")
        if record.commit == record.base_commit and not record.received:
            raise ContractError(
                Code.CONFLICT,
                f"{name} has no commits",
                field="branch",
                remedy=f"wait until a task has saved commits on branch {name}",
            )
        return record

    def _require_forge(self, record: BranchRecord) -> None:
        """Raise `ContractError` if the host of the branch's repository is not a known forge."""
        try:
            self._forges.require(record.url or "")
        except ForgeError as error:
            raise ContractError(
                Code.REFUSED,
                f"{record.branch} has no pull request: {error}",
                field="branch",
                remedy="an operator names its forge in SANDHERD_FORGES; or merge the branch by hand",
            ) from None

    async def _change(self, record: BranchRecord, decide: Decide) -> BranchView:
        with available("branches"):
            held = await self._live.branches.change(record.key, lambda newest, _: decide(newest))
        return (held.record if held else record).view()
