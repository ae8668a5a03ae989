"""Computes when the next step of a branch's pull request is due. Pure."""

from datetime import datetime

from spawner.pull_requests.pull_request_options import PollIntervals, PullRequestTerms
from spawner.pull_requests.pull_request_requests import merge_obstacle
from spawner.pull_requests.pull_request_steps import TaskWork, is_fully_pushed, next_step
from spawner.repositories.branch_record import BranchRecord


def due_at(
    record: BranchRecord, terms: PullRequestTerms, work: TaskWork, now: datetime, pace: PollIntervals
) -> datetime | None:
    """When the next step is due; None if no step is due before the branch or one of its tasks changes."""
    if merge_obstacle(record, pace) is not None:
        return now
    if work.active or not is_fully_pushed(record):
        return None
    if next_step(record, terms, work, now, pace) is not None:
        return now
    return record.pull.poll_at if record.pull is not None and record.pull.is_open else None
