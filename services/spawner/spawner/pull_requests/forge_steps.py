"""The steps of a pull request that its forge does. Each raises `ForgeError`, or returns what is written then."""

from functools import partial

from spawner.forges.factory import Forges
from spawner.forges.forge import Forge, MergeMethod
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
        """Find or create the pull request. `last`: the last task, if its record still exists."""
        pull, forge = decisions.pull_of(record), self._forge(record)
        ready, about = wants_ready(pull, terms, work), About.of(record, last)
        mirror = await self._mirrors.with_branch(record)
        changed = await changed_lines(mirror, record.base_commit, record.commit)
        issue = issue_of(record.ticket)
        closes = issue if issue is not None and await forge.issue_exists(issue) else None
        again = pull.shown is not None and not pull.is_open and pull.wanted is not None
        lines = {shown_path(path): counts for path, counts in changed.items()}
        draft = draft_of(record, terms, about, lines, closes=closes, ready=ready, again=again)
        found = await forge.find_or_create_pull_request(draft)
        now = self._live.now()
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

    def _forge(self, record: BranchRecord) -> Forge:
        return self._forges.of_url(record.url or "")


def _number(record: BranchRecord) -> int:
    shown = decisions.pull_of(record).shown
    assert shown is not None, "only one that exists has such a step"
    return shown.number
