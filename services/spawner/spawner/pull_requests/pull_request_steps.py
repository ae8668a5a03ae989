"""Decides which step of a branch's pull request is next. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from sandherd.contracts.states import TASK_ENDED, BranchState, TaskState
from spawner.pull_requests.pull_request_options import PollIntervals, PullRequestTerms
from spawner.repositories.branch_record import BranchRecord
from spawner.repositories.pull_request_record import PullRequestRecord
from spawner.tasks.task_record import TaskFacts

MAX_FOLLOW_UPS: Final = 3
"""Maximum number of tasks that are started to resolve the conflicts of one branch. Without a maximum there could be a
new task for each commit of the base."""
CONFLICT: Final = "conflict"
"""The obstacle of a pull request that conflicts with its base."""
_QUEUE_OBSTACLES: Final = frozenset({"queue", "checks", "rules"})
"""Obstacles to a direct merge with which a merge queue may nevertheless accept a pull request. The queue itself waits
for the checks, and the rule that requires the queue is also reported as an obstacle."""
_BLOCKING_REVIEWS: Final = frozenset({"required", "changes_requested"})
"""The results of reviews with which no pull request is merged automatically."""


class PullRequestStep(StrEnum):
    """Steps of a pull request, as metrics and events name them."""

    OPEN = "open_pull_request"
    """Find or create the pull request, or update its body, labels and reviewers."""
    READY = "mark_ready"
    """Make a draft ready for review."""
    POLL = "poll_pull_request"
    MERGE = "merge"
    FIND_CONFLICT = "find_conflict"
    """Find the paths with conflicts, and publish them."""
    FOLLOW_UP = "follow_up"
    """Submit a task that resolves the conflicts."""


@dataclass(frozen=True)
class TaskWork:
    """The progress of a branch's tasks."""

    active: bool = False
    """Whether a task may still save commits."""
    completed: bool = False
    """Whether the last task has completed."""


def task_work(record: BranchRecord, find_task: Callable[[str], TaskFacts | None]) -> TaskWork:
    """The progress of a branch's tasks. `find_task` returns a task's facts by its key; None if it has no record."""
    tasks = {name: find_task(f"{record.project}.{name}") for name in record.tasks}
    last = tasks[record.name]  # the name of a branch's record is that of its last task
    return TaskWork(
        active=any(task is not None and (task.state not in TASK_ENDED or task.saves) for task in tasks.values()),
        completed=last is not None and last.state is TaskState.COMPLETED,
    )


def is_fully_pushed(record: BranchRecord) -> bool:
    """Whether the branch has commits, and all are pushed. Only then may its pull request have a step."""
    has_pending_work = record.received or record.push_wanted or record.delete_wanted
    is_pushed = record.commit != record.base_commit and record.pushed == record.commit
    return record.state is BranchState.LIVE and is_pushed and not record.local and not has_pending_work


def target_of(record: BranchRecord) -> str:
    """The branch into which this branch is to be merged. Users may change the pull request's base at the forge."""
    at_forge = record.pull.shown if record.pull is not None and record.pull.is_open else None
    return (at_forge.base if at_forge else "") or record.base


def next_step(
    record: BranchRecord, terms: PullRequestTerms, work: TaskWork, now: datetime, pace: PollIntervals
) -> PullRequestStep | None:
    """The next step of the branch's pull request; None if no step is due."""
    pull = record.pull or PullRequestRecord()
    if work.active or not is_fully_pushed(record):
        return None
    if not pull.is_open:
        return (
            PullRequestStep.OPEN
            if _must_open(record, pull, terms) and _is_not_refused(pull, record, PullRequestStep.OPEN)
            else None
        )
    due: dict[PullRequestStep, bool] = {
        PullRequestStep.OPEN: pull.written != record.commit or pull.wanted == "as_configured",
        PullRequestStep.READY: _must_become_ready(record, pull, terms, work),
        PullRequestStep.FIND_CONFLICT: _has_conflicts(pull) and pull.conflicted != record.commit,
        PullRequestStep.FOLLOW_UP: _needs_follow_up(record, pull, terms),
        PullRequestStep.MERGE: _may_merge(record, pull, terms, now, pace),
        PullRequestStep.POLL: pull.poll_at is not None and now >= pull.poll_at,
    }
    return next((step for step, is_due in due.items() if is_due and _is_not_refused(pull, record, step)), None)


def is_ready_wanted(pull: PullRequestRecord, terms: PullRequestTerms, work: TaskWork) -> bool:
    """Whether the pull request is to be ready for review, not a draft."""
    return pull.wanted == "ready" or pull.merge_wanted is not None or (terms.open == "ready" and work.completed)


def _must_open(record: BranchRecord, pull: PullRequestRecord, terms: PullRequestTerms) -> bool:
    """Whether a pull request is to be opened: the first one, one that a user requests, or another one after a merge.

    After a pull request was closed, only a user's request opens another one.
    """
    if pull.wanted is not None or pull.shown is None:
        return terms.open != "none" or pull.wanted is not None or pull.merge_wanted is not None
    wanted = terms.open != "none" or pull.merge_wanted == record.commit
    return wanted and pull.shown.state == "merged" and pull.written != record.commit


def _is_not_refused(pull: PullRequestRecord, record: BranchRecord, step: PullRequestStep) -> bool:
    return pull.refused.get(step) != record.commit


def _must_become_ready(record: BranchRecord, pull: PullRequestRecord, terms: PullRequestTerms, work: TaskWork) -> bool:
    """Whether a draft is to be made ready for review. This is done once for each commit, so that a user may undo it."""
    if pull.wanted == "ready":
        return True
    is_draft = pull.shown is not None and pull.shown.draft
    return is_draft and is_ready_wanted(pull, terms, work) and pull.readied != record.commit


def _has_conflicts(pull: PullRequestRecord) -> bool:
    return pull.shown is not None and pull.shown.obstacle == CONFLICT


def _needs_follow_up(record: BranchRecord, pull: PullRequestRecord, terms: PullRequestTerms) -> bool:
    has_paths = pull.conflicted == record.commit and bool(pull.conflicts)
    is_new = pull.followed != record.commit
    return terms.follow_up and _has_conflicts(pull) and has_paths and is_new and len(pull.follow_ups) < MAX_FOLLOW_UPS


def _may_merge(
    record: BranchRecord, pull: PullRequestRecord, terms: PullRequestTerms, now: datetime, pace: PollIntervals
) -> bool:
    """Whether a merge is wanted, and a poll after the last attempt to merge permits it."""
    is_requested = pull.merge_wanted == record.commit
    if not is_requested and terms.merge == "never":
        return False
    if pull.queued_at is not None and now - pull.queued_at < pace.queued:
        return False
    return _is_current(record, pull) and (
        _permits(pull, queue=terms.merge == "queue")
        and (is_requested or _has_passed(pull, now, pace, queue=terms.merge == "queue"))
    )


def _is_current(record: BranchRecord, pull: PullRequestRecord) -> bool:
    """Whether the last poll was about the branch's last commit, and later than the last attempt to merge."""
    at_forge = pull.shown
    if at_forge is None or at_forge.commit != record.commit or at_forge.checked_at is None:
        return False
    return pull.tried_at is None or at_forge.checked_at > pull.tried_at


def _permits(pull: PullRequestRecord, *, queue: bool) -> bool:
    """Whether the forge permits a merge. `queue`: the merge policy is to use a merge queue."""
    at_forge = pull.shown
    if at_forge is None or at_forge.draft or at_forge.mergeable == "unknown":
        return False
    if at_forge.mergeable == "yes" or at_forge.obstacle == "queue":
        return True
    return queue and at_forge.obstacle in _QUEUE_OBSTACLES


def _has_passed(pull: PullRequestRecord, now: datetime, pace: PollIntervals, *, queue: bool) -> bool:
    """Whether all checks and reviews permit a merge that no user requested, including those that are not required."""
    at_forge = pull.shown
    if at_forge is None or at_forge.checks == "failed" or at_forge.reviews in _BLOCKING_REVIEWS:
        return False
    if at_forge.checks == "none":  # checks may not have begun yet
        return pull.written_at is not None and now - pull.written_at >= pace.no_checks
    return at_forge.checks == "passed" or queue  # a merge queue waits for checks itself
