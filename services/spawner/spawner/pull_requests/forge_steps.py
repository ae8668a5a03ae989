"""The steps of a pull request that its forge does. Each raises `ForgeError`, or returns what is written then."""

from dataclasses import replace
from functools import partial

from sandherd.contracts.repositories import Repository
from spawner.forges.factory import Forges
from spawner.forges.forge import Forge, MergeMethod, PullRequest, PullRequestState
from spawner.live_state import LiveState
from spawner.pull_requests import decisions
from spawner.pull_requests.steps import TaskWork, wants_ready, work_on
from spawner.pull_requests.terms import Pace, Terms
from spawner.pull_requests.text import About, draft_of, issue_of
from spawner.repositories.decisions import Decide
from spawner.repositories.differences import changed_lines, shown_path
from spawner.repositories.mirrors import Mirrors
from spawner.repositories.record import BranchRecord
from spawner.tasks.record import TaskRecord


class ForgeSteps:
    """The steps that send requests to forges."""

    def __init__(self, live: LiveState, forges: Forges, mirrors: Mirrors, pace: Pace) -> None:
        self._live, self._forges, self._mirrors, self._pace = live, forges, mirrors, pace

    async def open(self, record: BranchRecord, terms: Terms, work: TaskWork, last: TaskRecord | None) -> Decide:
        """Update the pull request, or find or create it if none is known to be open.

        `last`: the last task, if its record still exists.
        """
        pull, forge = decisions.pull_of(record), self._forge(record)
        ready, about = wants_ready(pull, terms, work), About.of(record, last)
        mirror = await self._mirrors.with_branch(record)
        changed = await changed_lines(mirror, record.base_commit, record.commit)
        issue = issue_of(record.ticket)
        closes = issue if issue is not None and await forge.issue_exists(issue) else None
        again = pull.shown is not None and not pull.is_open and pull.wanted is not None
        lines = {shown_path(path): counts for path, counts in changed.items()}
        draft = draft_of(record, terms, about, lines, closes=closes, ready=ready, again=again)
        if pull.is_open:  # by its number: users may have closed it, or changed its base
            found = await forge.update_pull_request(_number(record), draft)
        else:
            found = await forge.find_or_create_pull_request(draft)
        found, now = await self._as_merged(record, found), self._live.now()
        return partial(
            decisions.opened,
            found=found,
            commit=record.commit,
            now=now,
            ready=ready,
            about=(about.task, about.text),
            pace=self._pace,
            worked_on=self._is_worked_on,
        )

    async def make_ready(self, record: BranchRecord) -> Decide:
        """Make the draft ready for review."""
        await self._forge(record).mark_ready(_number(record))
        return partial(decisions.made_ready, commit=record.commit, now=self._live.now())

    async def poll(self, record: BranchRecord) -> Decide:
        """Read its state, checks and reviews."""
        status = await self._forge(record).pull_request(_number(record))
        status = replace(status, pull_request=await self._as_merged(record, status.pull_request))
        now = self._live.now()
        return partial(decisions.polled, status=status, now=now, pace=self._pace, worked_on=self._is_worked_on)

    async def merge(self, record: BranchRecord, terms: Terms) -> Decide:
        """Merge it, if its head is the commit that was pushed."""
        outcome = await self._forge(record).merge(
            _number(record), record.commit, MergeMethod(terms.method), queue=terms.merge == "queue"
        )
        now = self._live.now()
        return partial(
            decisions.merge_answered,
            outcome=outcome,
            commit=record.commit,
            now=now,
            pace=self._pace,
            worked_on=self._is_worked_on,
        )

    def _is_worked_on(self, record: BranchRecord) -> bool:
        return work_on(record, self._live.task_facts).active

    async def _as_merged(self, record: BranchRecord, found: PullRequest) -> PullRequest:
        """The pull request, at the branch's commit if it was merged with it and with others, as of "Update branch"."""
        if found.state is not PullRequestState.MERGED or found.head_commit == record.commit:
            return found
        mirror = await self._mirrors.with_branch(record)
        await self._mirrors.fetch(record.project, Repository(url=record.url))
        for commit in (found.head_commit, found.merged_commit):
            if commit and await mirror.has_commit(commit) and await mirror.contains(commit, record.commit):
                return replace(found, head_commit=record.commit)
        return found

    def _forge(self, record: BranchRecord) -> Forge:
        return self._forges.of_url(record.url or "")


def _number(record: BranchRecord) -> int:
    shown = decisions.pull_of(record).shown
    assert shown is not None, "only one that exists has such a step"
    return shown.number
