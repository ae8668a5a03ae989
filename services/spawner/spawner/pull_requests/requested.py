"""What users request of pull requests, as pure functions from a branch's record to the next record."""

from datetime import datetime

from sandherd.contracts.requests import MergeBranch, OpenPullRequest
from sandherd.contracts.states import BranchState
from spawner.pull_requests.decisions import pull_of
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


def _pushing(record: BranchRecord) -> BranchRecord:
    """A pull request needs a branch that is pushed."""
    wanted = record.commit not in {record.pushed, record.base_commit}
    return record.model_copy(update={"push_wanted": True}) if wanted else record
