"""The steps of a pull request that need its forge. Each returns a change of the record.

They raise `ForgeError` and `GitError`.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from spawner.forges.factory import Forges
from spawner.forges.forge import Forge, MergeMethod, PullRequest, PullRequestState
from spawner.live_state import LiveState
from spawner.pull_requests import pull_request_transitions
from spawner.pull_requests.pull_request_facts import PullRequestTask, draft_of, issue_of
from spawner.pull_requests.pull_request_options import PollIntervals, PullRequestTerms
from spawner.pull_requests.pull_request_steps import TaskWork, is_ready_wanted, target_of, task_work
from spawner.repositories.branch_diff import changed_lines, shown_path
from spawner.repositories.branch_record import BranchRecord
from spawner.repositories.branch_transitions import Decide
from spawner.repositories.git import GitError, GitFault
from spawner.repositories.mirror import Mirror
from spawner.repositories.mirrors import Mirrors
from spawner.repositories.path_approval import PathApproval
from spawner.tasks.task_record import TaskRecord


class ForgeSteps:
    """The steps that send requests to forges."""

    def __init__(self, live: LiveState, forges: Forges, mirrors: Mirrors, pace: PollIntervals) -> None:
        self._live, self._forges, self._mirrors, self._pace = live, forges, mirrors, pace

    async def open(
        self, record: BranchRecord, terms: PullRequestTerms, work: TaskWork, tasks: Mapping[str, TaskRecord]
    ) -> Decide:
        """Update the pull request, or find or create it if none is known to be open.

        `tasks`: the records of the branch's tasks that still exist.
        """
        pull, forge = pull_request_transitions.pull_of(record), self._forge(record)
        ready, task = is_ready_wanted(pull, terms, work), PullRequestTask.of(record, tasks)
        mirror = await self._mirrors.with_branch(record)
        changed = await changed_lines(mirror, record.base_commit, record.commit)
        issue = issue_of(record.ticket)
        closes = issue if issue is not None and await forge.issue_exists(issue) else None
        reopens = pull.shown is not None and not pull.is_open and pull.wanted is not None
        lines = {shown_path(path): counts for path, counts in changed.items()}
        draft = draft_of(record, terms, task, lines, closes=closes, ready=ready, reopens=reopens)
        if pull.is_open:  # found by its number, because users may have closed it or changed its base meanwhile
            pull_request = await forge.update_pull_request(_number(record), draft)
        else:
            pull_request = await forge.find_or_create_pull_request(draft)
        pull_request, now = await self._as_merged(record, pull_request), self._live.now()
        return partial(
            pull_request_transitions.opened,
            pull_request=pull_request,
            commit=record.commit,
            now=now,
            ready=ready,
            task_fields={"task": task.task, "text": task.text, "costs": task.costs},
            pace=self._pace,
            worked_on=self._is_worked_on,
        )

    async def make_ready(self, record: BranchRecord) -> Decide:
        """Make the draft ready for review."""
        await self._forge(record).mark_ready(_number(record))
        return partial(pull_request_transitions.made_ready, commit=record.commit, now=self._live.now())

    async def poll(self, record: BranchRecord) -> Decide:
        """Read the pull request's state, checks and reviews."""
        status = await self._forge(record).pull_request(_number(record))
        status = replace(status, pull_request=await self._as_merged(record, status.pull_request))
        now = self._live.now()
        return partial(
            pull_request_transitions.polled, status=status, now=now, pace=self._pace, worked_on=self._is_worked_on
        )

    async def merge(self, record: BranchRecord, terms: PullRequestTerms) -> Decide:
        """Merge the pull request, if its head is the pushed commit and no path needs a user's approval."""
        paths = await self._unapproved_paths(record, terms)
        if paths:
            return partial(
                pull_request_transitions.merge_needs_approval, commit=record.commit, paths=paths, now=self._live.now()
            )
        outcome = await self._forge(record).merge(
            _number(record), record.commit, MergeMethod(terms.method), queue=terms.merge == "queue"
        )
        now = self._live.now()
        return partial(
            pull_request_transitions.merge_attempted,
            outcome=outcome,
            commit=record.commit,
            now=now,
            pace=self._pace,
            worked_on=self._is_worked_on,
        )

    async def _unapproved_paths(self, record: BranchRecord, terms: PullRequestTerms) -> tuple[str, ...]:
        """The paths that a user still has to approve: the base may have changed since the approval for the push."""
        if not terms.approval:
            return ()
        mirror = await self._mirrors.with_branch(record)
        await self._mirrors.refresh(mirror, record)
        approved = record.approved_paths if record.approved == record.commit else ()
        paths = await PathApproval(terms.approval).paths(mirror, record, target_of(record))
        return tuple(path for path in paths if path not in approved)

    def _is_worked_on(self, record: BranchRecord) -> bool:
        return task_work(record, self._live.task_facts).active

    async def _as_merged(self, record: BranchRecord, pull_request: PullRequest) -> PullRequest:
        """The pull request. If it was merged with commits after the branch's commit, its head is that commit instead.

        Later commits are added, for example, by "Update branch" at the forge.
        """
        if pull_request.state is not PullRequestState.MERGED or pull_request.head_commit == record.commit:
            return pull_request
        mirror = await self._mirrors.with_branch(record)
        await self._mirrors.refresh(mirror, record)
        merged_and_head = (pull_request.merged_commit or "", pull_request.head_commit)
        contains_commit = any([await _contains(mirror, commit, record.commit) for commit in merged_and_head])
        if not contains_commit and not await mirror.has_commit(pull_request.head_commit):
            # The commits were squashed, and the remote branch was deleted.
            await self._fetch_head(mirror, record, pull_request.number)
            contains_commit = await _contains(mirror, pull_request.head_commit, record.commit)
        return replace(pull_request, head_commit=record.commit) if contains_commit else pull_request

    async def _fetch_head(self, mirror: Mirror, record: BranchRecord, number: int) -> None:
        repository = self._forges.repository(record.url or "")
        if repository is None:
            return
        try:
            await self._mirrors.fetch_ref(mirror, record, repository.pull_ref(number))
        except GitError as error:
            if not error.permanent or error.fault is GitFault.DENIED:
                raise
            # The forge no longer has the pull request's head.

    def _forge(self, record: BranchRecord) -> Forge:
        return self._forges.of_url(record.url or "")


async def _contains(mirror: Mirror, commit: str, ancestor: str) -> bool:
    """Whether the mirror has the commit, and the commit contains `ancestor`."""
    return bool(commit) and await mirror.has_commit(commit) and await mirror.contains(commit, ancestor)


def _number(record: BranchRecord) -> int:
    at_forge = pull_request_transitions.pull_of(record).shown
    assert at_forge is not None, "only an existing pull request has such a step"
    return at_forge.number
