"""Stores since when a forge has not shown a pushed branch. Pure functions of the branch's record."""

from datetime import datetime

from sandherd.contracts.states import BranchState
from spawner.pull_requests.pull_request_options import PollIntervals
from spawner.pull_requests.pull_request_transitions import pull_of
from spawner.repositories.branch_record import BranchRecord


def mark_unseen(record: BranchRecord, commit: str, now: datetime) -> BranchRecord:
    """The record with the fact that the forge does not show this commit; unchanged if that is stored already."""
    pull = pull_of(record)
    if pull.unseen == commit or record.commit != commit or record.state is not BranchState.LIVE:
        return record
    return record.model_copy(update={"pull": pull.changed(unseen=commit, unseen_since=now), "updated_at": now})


def is_unseen_for_long(record: BranchRecord, now: datetime, pace: PollIntervals) -> bool:
    """Whether the forge has not shown the branch for so long that the cause is not a delay.

    Causes are that the branch or its base was deleted, or that pull requests are disabled.
    """
    pull = pull_of(record)
    return pull.unseen == record.commit and pull.unseen_since is not None and now - pull.unseen_since >= pace.unseen
