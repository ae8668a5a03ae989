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
"""Maximum tasks that resolve conflicts of one branch: its base may change faster than they end."""
CONFLICT: Final = "conflict"
_QUEUE_DECIDES: Final = frozenset({"queue", "checks", "rules"})
"""Obstacles with which a merge queue may accept a pull request: it waits for checks, and its rule is one of them."""
_UNREVIEWED: Final = frozenset({"required", "changes_requested"})


class PullRequestStep(StrEnum):
    """Steps of a pull request, as metrics and events name them."""

    OPEN = "open_pull_request"
    """Find or create it, or update its body, labels and reviewers."""
    READY = "mark_ready"
    POLL = "poll_pull_request"
    MERGE = "merge"
    EXPLAIN = "find_conflict"
    FOLLOW_UP = "follow_up"


@dataclass(frozen=True)
class TaskWork:
    """The work of a branch's tasks: whether one may still save commits, and whether the last one has completed."""

    active: bool = False
    completed: bool = False


def work_on(record: BranchRecord, find: Callable[[str], TaskFacts | None]) -> TaskWork:
    """The work of a branch's tasks. `find` returns the facts of a task by its key; None if its record was removed."""
    found = {name: find(f"{record.project}.{name}") for name in record.tasks}
    last = found[record.name]
    return TaskWork(
        active=any(task is not None and (task.state not in TASK_ENDED or task.saves) for task in found.values()),
        completed=last is not None and last.state is TaskState.COMPLETED,
    )


def is_resting(record: BranchRecord) -> bool:
    """Whether the branch has commits, and all of them are pushed: before that, its pull request has no step."""
    waits = record.received or record.push_wanted or record.delete_wanted
    saved = record.commit != record.base_commit and record.pushed == record.commit
    return record.state is BranchState.LIVE and saved and not record.local and not waits


def target_of(record: BranchRecord) -> str:
    """The branch that it is to be merged into: users may have changed the base of its pull request at the forge."""
    shown = record.pull.shown if record.pull is not None and record.pull.is_open else None
    return (shown.base if shown else "") or record.base


def next_step(
    record: BranchRecord, terms: PullRequestTerms, work: TaskWork, now: datetime, pace: PollIntervals
) -> PullRequestStep | None:
    """The next step of the branch's pull request; None if no step is due."""
    pull = record.pull or PullRequestRecord()
    if work.active or not is_resting(record):
        return None
    if not pull.is_open:
        return (
            PullRequestStep.OPEN
            if _opens(record, pull, terms) and _is_not_refused(pull, record, PullRequestStep.OPEN)
            else None
        )
    due: dict[PullRequestStep, bool] = {
        PullRequestStep.OPEN: pull.written != record.commit or pull.wanted == "as_configured",
        PullRequestStep.READY: _is_ready(record, pull, terms, work),
        PullRequestStep.EXPLAIN: _conflicts(pull) and pull.conflicted != record.commit,
        PullRequestStep.FOLLOW_UP: _needs_follow_up(record, pull, terms),
        PullRequestStep.MERGE: _may_merge(record, pull, terms, now, pace),
        PullRequestStep.POLL: pull.poll_at is not None and now >= pull.poll_at,
    }
    return next((step for step, is_due in due.items() if is_due and _is_not_refused(pull, record, step)), None)


def wants_ready(pull: PullRequestRecord, terms: PullRequestTerms, work: TaskWork) -> bool:
    """Whether the pull request is to be ready for review, not a draft."""
    return pull.wanted == "ready" or pull.merge_wanted is not None or (terms.open == "ready" and work.completed)


def _opens(record: BranchRecord, pull: PullRequestRecord, terms: PullRequestTerms) -> bool:
    """Whether another pull request is to be opened. After a user has closed one, only at a user's request."""
    if pull.wanted is not None or pull.shown is None:
        return terms.open != "none" or pull.wanted is not None or pull.merge_wanted is not None
    wanted = terms.open != "none" or pull.merge_wanted == record.commit
    return wanted and pull.shown.state == "merged" and pull.written != record.commit


def _is_not_refused(pull: PullRequestRecord, record: BranchRecord, step: PullRequestStep) -> bool:
    return pull.refused.get(step) != record.commit


def _is_ready(record: BranchRecord, pull: PullRequestRecord, terms: PullRequestTerms, work: TaskWork) -> bool:
    if pull.wanted == "ready":
        return True
    draft = pull.shown is not None and pull.shown.draft
    return draft and wants_ready(pull, terms, work) and pull.readied != record.commit


def _conflicts(pull: PullRequestRecord) -> bool:
    return pull.shown is not None and pull.shown.obstacle == CONFLICT


def _needs_follow_up(record: BranchRecord, pull: PullRequestRecord, terms: PullRequestTerms) -> bool:
    explained = pull.conflicted == record.commit and bool(pull.conflicts) and pull.followed != record.commit
    return terms.follow_up and _conflicts(pull) and explained and len(pull.follow_ups) < MAX_FOLLOW_UPS


def _may_merge(
    record: BranchRecord, pull: PullRequestRecord, terms: PullRequestTerms, now: datetime, pace: PollIntervals
) -> bool:
    """Whether a merge is wanted, and the last poll permits it, which was after the last attempt to merge."""
    by_user = pull.merge_wanted == record.commit
    if not by_user and terms.merge == "never":
        return False
    if pull.queued_at is not None and now - pull.queued_at < pace.queued:
        return False
    return _is_fresh(record, pull) and (
        _permits(pull, queue=terms.merge == "queue")
        and (by_user or _has_passed(pull, now, pace, queue=terms.merge == "queue"))
    )


def _is_fresh(record: BranchRecord, pull: PullRequestRecord) -> bool:
    shown = pull.shown
    if shown is None or shown.commit != record.commit or shown.checked_at is None:
        return False
    return pull.tried_at is None or shown.checked_at > pull.tried_at


def _permits(pull: PullRequestRecord, *, queue: bool) -> bool:
    shown = pull.shown
    if shown is None or shown.draft or shown.mergeable == "unknown":
        return False
    return shown.mergeable == "yes" or shown.obstacle == "queue" or (queue and shown.obstacle in _QUEUE_DECIDES)


def _has_passed(pull: PullRequestRecord, now: datetime, pace: PollIntervals, *, queue: bool) -> bool:
    """Whether checks and reviews permit a merge that no user requested, also those that the forge does not require."""
    shown = pull.shown
    if shown is None or shown.checks == "failed" or shown.reviews in _UNREVIEWED:
        return False
    if shown.checks == "none":
        return pull.written_at is not None and now - pull.written_at >= pace.no_checks
    return shown.checks == "passed" or queue
