"""What users request of pull requests, as pure functions from a branch's record to the next record."""

from datetime import datetime

from sandherd.contracts.requests import MergeBranch, OpenPullRequest
from sandherd.contracts.states import BranchState
from spawner.forges.forge import Obstacle
from spawner.pull_requests.decisions import pull_of, refusal
from spawner.pull_requests.steps import Step, is_resting
from spawner.pull_requests.terms import Pace
from spawner.repositories.pull_request_record import PullRequestRecord
from spawner.repositories.record import BranchRecord


def open_requested(record: BranchRecord, request: OpenPullRequest, now: datetime) -> BranchRecord:
    """The branch whose pull request a user wants to be opened, or updated."""
    if record.state is not BranchState.LIVE:
        return record
    wanted = "ready" if request.ready else "as_configured"
    changed = pull_of(record).changed(wanted=wanted, refused={}, problem=None, poll_at=now, polls=0, changed_at=now)
    return _pushing(record.model_copy(update={"pull": changed, "updated_at": now}))


def merge_requested(record: BranchRecord, request: MergeBranch, now: datetime) -> BranchRecord:
    """The branch that a user wants to be merged at its present commit; the same if that is another one by now."""
    if record.state is not BranchState.LIVE or request.commit not in {None, record.commit}:
        return record
    changed = pull_of(record).changed(
        merge_wanted=record.commit, refused={}, problem=None, poll_at=now, polls=0, changed_at=now, tried_at=None
    )
    return _pushing(record.model_copy(update={"pull": changed, "updated_at": now}))


def merge_obstacle(record: BranchRecord, pace: Pace) -> tuple[Obstacle, str] | None:
    """Why the merge that a user wants will not take place, and the text for it; None: it still may, or none is wanted.

    A forge may see a push late: that its head is another one counts some time after the commit was written.
    """
    pull = pull_of(record)
    if pull.merge_wanted is None or record.state is not BranchState.LIVE:
        return None
    if pull.merge_wanted != record.commit:
        return Obstacle.HEAD_MOVED, f"the branch is at {record.commit[:12]} by now; merge again if that is wanted"
    return _moved_at_forge(record, pull, pace) if pull.written == record.commit and is_resting(record) else None


def _moved_at_forge(record: BranchRecord, pull: PullRequestRecord, pace: Pace) -> tuple[Obstacle, str] | None:
    shown = pull.shown
    if shown is None:
        return None
    if not pull.is_open and pull.wanted is None:
        return Obstacle.CLOSED, f"its pull request is {shown.state}; open another one with `sandherd branches pr`"
    times = shown.checked_at, pull.written_at
    settled = times[0] is not None and times[1] is not None and times[0] - times[1] >= pace.no_checks
    if pull.is_open and settled and shown.commit != record.commit:
        return Obstacle.HEAD_MOVED, f"its pull request is at {shown.commit[:12]}, which this herd did not push"
    return None


def merge_withdrawn(
    record: BranchRecord, *, wanted: str, obstacle: Obstacle, reason: str, now: datetime
) -> BranchRecord:
    """The branch whose commit `wanted` will not be merged: the request is withdrawn, and an event states why."""
    if pull_of(record).merge_wanted != wanted:
        return record
    changed = pull_of(record).changed(merge_wanted=None, problem=reason)
    event = refusal(record, Step.MERGE, reason, obstacle.value)
    return record.model_copy(update={"pull": changed, "updated_at": now}).with_events(now, event)


def _pushing(record: BranchRecord) -> BranchRecord:
    """A pull request needs a branch that is pushed."""
    wanted = record.commit not in {record.pushed, record.base_commit}
    return record.model_copy(update={"push_wanted": True}) if wanted else record
