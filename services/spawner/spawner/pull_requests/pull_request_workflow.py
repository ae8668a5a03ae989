"""Runs the steps of pull requests, such as open, poll and merge. The steps of one branch run one after another.

The result of a step is written to the branch's record. After a crash the step is repeated. It then reads from the forge
what was done already, and requests only the rest.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Final

from sandherd.backoff import Backoff
from sandherd.bus.lease import Lease
from sandherd.concurrency import run_until_first, sleep_aligned
from sandherd.contracts.commands import SubmitTask
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.names import DerivedIds
from sandherd.telemetry import logs
from spawner.forges.factory import Forges
from spawner.forges.faults import ForgeError, ForgeFault
from spawner.live_state import LiveState
from spawner.pull_requests import pull_request_transitions
from spawner.pull_requests.conflict_task import follow_up, follow_up_name, follow_up_problem
from spawner.pull_requests.conflicts import conflicting_paths
from spawner.pull_requests.forge_steps import ForgeSteps
from spawner.pull_requests.pull_request_options import PollIntervals, PullRequestTerms
from spawner.pull_requests.pull_request_requests import merge_obstacle, merge_withdrawn
from spawner.pull_requests.pull_request_steps import PullRequestStep, TaskWork, next_step, task_work
from spawner.pull_requests.step_schedule import due_at
from spawner.pull_requests.unseen_branches import is_unseen_for_long, mark_unseen
from spawner.repositories.branch_record import BranchRecord
from spawner.repositories.branch_transitions import DONE, Decide
from spawner.repositories.git import GitError
from spawner.repositories.mirrors import Mirrors
from spawner.repositories.step_loop import run_steps
from spawner.repositories.work_queue import WorkQueue
from spawner.spec_resolution import Refusal
from spawner.tasks.task_record import TaskFacts, TaskRecord

Submit = Callable[[Envelope[SubmitTask], datetime], Awaitable[Refusal | None]]
"""Creates the task of a command, unless the command was submitted before. Returns why it is refused, or None."""
_MAX_CONCURRENT: Final = 4
_MAX_CONCURRENT_OF_PROJECT: Final = 2
"""Maximum branches that are handled concurrently: in all, and of one project."""
_TICK_SECONDS: Final = 0.5
"""The interval between checks for branches with a due step."""
_RETRY: Final = Backoff(1.0, 120.0, jitter=0.5)
"""The delays in seconds until the steps of a branch are retried."""
_log: Final = logs.get("pull-requests")


class PullRequestWorkflow:
    """Runs due steps while it holds the lease: several branches concurrently, but only a few of one project."""

    def __init__(
        self,
        live: LiveState,
        lease: Lease,
        mirrors: Mirrors,
        forges: Forges,
        *,
        terms: PullRequestTerms,
        submit: Submit,
        ids: DerivedIds,
        pace: PollIntervals,
    ) -> None:
        self._live, self._lease, self._mirrors = live, lease, mirrors
        self._terms, self._submit, self._ids, self._pace = terms, submit, ids, pace
        self._forge = ForgeSteps(live, forges, mirrors, pace)
        self._queue = WorkQueue(self._try, _RETRY, at_once=_MAX_CONCURRENT, of_project=_MAX_CONCURRENT_OF_PROJECT)
        self._due_times: dict[str, datetime] = {}
        """When the next step of a branch is due, by the branch's key."""
        live.branch_index.on_change(self._on_branch)
        live.task_index.on_change(self._on_task)
        live.last_events.on_handled(self._on_task_key)

    async def run(self) -> None:
        """Run until cancelled."""
        await self._live.read()
        await run_until_first(self._request_due_steps(), self._queue.run())

    async def _request_due_steps(self) -> None:
        """Queue the branches with due steps. Whenever the lease is acquired, compute the due times of all branches."""
        fence = None
        while True:
            await self._lease.wait_held()
            if fence != self._lease.fence:
                fence = self._lease.fence
                for key, known in self._live.branch_index.items():
                    self._on_branch(key, known.view)
            now = self._live.now()
            for key in [key for key, at in self._due_times.items() if at <= now]:
                del self._due_times[key]
                self._queue.request(key)
            await sleep_aligned(_TICK_SECONDS)

    def _on_branch(self, key: str, branch: BranchRecord) -> None:
        terms = self._terms.with_options(branch.pull_options)
        at = due_at(branch, terms, self._work(branch), self._live.now(), self._pace)
        if at is None:
            self._due_times.pop(key, None)
        else:
            self._due_times[key] = at

    def _on_task(self, _key: str, task: TaskFacts) -> None:
        """Schedule the branch of a task that has changed. Steps may be due when the task has ended."""
        key = f"{task.project}.{task.branch_id}"
        known = self._live.branch_index.get(key) if task.branch_id else None
        if known is not None:
            self._on_branch(key, known.view)

    def _work(self, record: BranchRecord) -> TaskWork:
        return task_work(record, self._live.task_facts)

    def _on_task_key(self, key: str) -> None:
        known = self._live.task_index.get(key)
        if known is not None:
            self._on_task(key, known.view)

    # --- one branch ----------------------------------------------------------------------------------------------

    async def _try(self, key: str) -> bool:
        """Run all due steps of a branch; return whether to retry later."""
        return await run_steps(key, self.step, _log, (ForgeError, GitError))

    async def step(self, key: str) -> bool:
        """Run the next step; return whether there was one. Raises `ForgeError` or `GitError` if a retry may succeed."""
        self._lease.check()
        held = await self._live.branches.load(key)
        if held is None:
            return False
        record, now = held.record, self._live.now()
        if await self._withdraw_merge(key, record):
            return True
        terms = self._terms.with_options(record.pull_options)
        step = next_step(record, terms, self._work(record), now, self._pace)
        if step is None:
            return False
        await self._change(key, await self._run_step(step, record, terms))
        return True

    async def _withdraw_merge(self, key: str, record: BranchRecord) -> bool:
        """Withdraw a user's request to merge if an obstacle prevents the merge. Returns whether it was withdrawn."""
        obstacle_and_reason, pull = merge_obstacle(record, self._pace), record.pull
        if obstacle_and_reason is None or pull is None or pull.merge_wanted is None:
            return False
        obstacle, reason = obstacle_and_reason
        now = self._live.now()
        decide = partial(merge_withdrawn, wanted=pull.merge_wanted, obstacle=obstacle, reason=reason, now=now)
        await self._change(key, decide)
        return True

    async def _run_step(self, step: PullRequestStep, record: BranchRecord, terms: PullRequestTerms) -> Decide:
        """Run a step. Returns the change of the record by the result, which may be a refusal of the forge."""
        try:
            decide = await self._perform(step, record, terms)
        except (ForgeError, GitError) as error:
            self._count(step, _outcome(error))
            if not error.permanent and not await self._is_unseen_for_long(record, error):
                raise
            return self._refusal(step, record, str(error), _code(error))
        self._count(step, DONE)
        return decide

    async def _is_unseen_for_long(self, record: BranchRecord, error: ForgeError | GitError) -> bool:
        """Whether the forge has not shown the pushed branch for too long. Store in the record since when it has not."""
        if error.fault is not ForgeFault.NOT_SEEN:
            return False
        now = self._live.now()
        await self._change(record.key, partial(mark_unseen, commit=record.commit, now=now))
        return is_unseen_for_long(record, now, self._pace)

    async def _perform(self, step: PullRequestStep, record: BranchRecord, terms: PullRequestTerms) -> Decide:
        match step:
            case PullRequestStep.OPEN:
                return await self._forge.open(record, terms, self._work(record), await self._tasks(record))
            case PullRequestStep.READY:
                return await self._forge.make_ready(record)
            case PullRequestStep.POLL:
                return await self._forge.poll(record)
            case PullRequestStep.MERGE:
                return await self._forge.merge(record, terms)
            case PullRequestStep.FIND_CONFLICT:
                paths = await conflicting_paths(self._mirrors, record)
                return partial(
                    pull_request_transitions.conflicted, commit=record.commit, paths=paths, now=self._live.now()
                )
            case PullRequestStep.FOLLOW_UP:
                return await self._follow_up(record)

    async def _follow_up(self, record: BranchRecord) -> Decide:
        """Submit the task that resolves the conflicts. A repetition is without effect: the command has the same id."""
        now, last = self._live.now(), await self._last_task(record)
        at = record.pull.conflicted_at if record.pull else None
        problem = follow_up_problem(record, last)
        if last is None or problem is not None or at is None:
            return self._refusal(PullRequestStep.FOLLOW_UP, record, problem or "", "refused")
        name = follow_up_name(self._ids, record, at, record.commit)
        self._lease.check()
        refused = await self._submit(follow_up(self._ids, record, last, at, record.commit), at)
        if refused is not None:
            return self._refusal(PullRequestStep.FOLLOW_UP, record, refused.reason, "refused")
        return partial(pull_request_transitions.followed_up, commit=record.commit, task=name, now=now)

    def _refusal(self, step: PullRequestStep, record: BranchRecord, reason: str, code: str) -> Decide:
        now = self._live.now()
        if step is PullRequestStep.POLL:
            return partial(pull_request_transitions.not_polled, reason=reason, code=code, now=now, pace=self._pace)
        return partial(
            pull_request_transitions.refused, step=step, commit=record.commit, reason=reason, code=code, now=now
        )

    async def _tasks(self, record: BranchRecord) -> dict[str, TaskRecord]:
        """The records of the branch's tasks that still exist, by name."""
        loaded = [await self._live.tasks.load(f"{record.project}.{name}") for name in record.tasks]
        return {held.record.task: held.record for held in loaded if held is not None}

    async def _last_task(self, record: BranchRecord) -> TaskRecord | None:
        held = await self._live.tasks.load(f"{record.project}.{record.name}")
        return held.record if held else None

    async def _change(self, key: str, decide: Decide) -> None:
        self._lease.check()
        await self._live.change_branch(key, decide)

    def _count(self, step: PullRequestStep, outcome: str) -> None:
        self._live.meters.count("sandherd_branch_steps_total", step=step.value, outcome=outcome)


def _code(error: ForgeError | GitError) -> str:
    """The fault's code in events."""
    return (ForgeFault.NOT_FOUND if error.fault is ForgeFault.NOT_SEEN else error.fault).value


def _outcome(error: ForgeError | GitError) -> str:
    """The value of the metrics' attribute `outcome` for a step that failed."""
    if not error.permanent:
        return ForgeFault.UNAVAILABLE.value
    return "denied" if error.fault.value == ForgeFault.DENIED.value else "refused"
