"""Requests of users and forges about pull requests, as pure functions from a branch's record to the next record."""

from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlsplit

from sandherd.contracts.requests import CheckPullRequests, MergeBranch, OpenPullRequest
from sandherd.contracts.states import BranchState
from spawner.forges.forge import Obstacle
from spawner.pull_requests.pull_request_options import PollIntervals
from spawner.pull_requests.pull_request_steps import PullRequestStep, is_fully_pushed
from spawner.pull_requests.pull_request_transitions import pull_of, refusal
from spawner.repositories.branch_record import BranchRecord
from spawner.repositories.pull_request_record import PullRequestRecord

MIN_POLL_INTERVAL: Final = timedelta(seconds=2)
"""The minimum time between two polls of a pull request, even if its forge reports changes more often."""


def open_requested(record: BranchRecord, request: OpenPullRequest, now: datetime) -> BranchRecord:
    """The branch with a user's request to open or update its pull request."""
    if record.state is not BranchState.LIVE:
        return record
    wanted = "ready" if request.ready else "as_configured"
    changed = pull_of(record).changed(wanted=wanted, refused={}, problem=None, poll_at=now, polls=0, changed_at=now)
    return _with_push(record.model_copy(update={"pull": changed, "updated_at": now}))


def merge_requested(record: BranchRecord, request: MergeBranch, now: datetime) -> BranchRecord:
    """The branch with a user's request to merge its current commit; unchanged if the request names another commit."""
    if record.state is not BranchState.LIVE or request.commit not in {None, record.commit}:
        return record
    changed = pull_of(record).changed(
        merge_wanted=record.commit, refused={}, problem=None, poll_at=now, polls=0, changed_at=now, tried_at=None
    )
    return _with_push(record.model_copy(update={"pull": changed, "updated_at": now}))


def merge_obstacle(record: BranchRecord, pace: PollIntervals) -> tuple[Obstacle, str] | None:
    """The obstacle, with its text, to a merge that a user wants; None if there is no obstacle, or no merge is wanted.

    A forge may show a push late. So if the pull request is at another commit, that is an obstacle only if a poll at
    least `pace.no_checks` after the last update of the pull request has shown it.
    """
    pull = pull_of(record)
    if pull.merge_wanted is None or record.state is not BranchState.LIVE:
        return None
    if pull.merge_wanted != record.commit:
        return Obstacle.HEAD_MOVED, f"the branch is at {record.commit[:12]} by now; merge again if that is wanted"
    return _moved_at_forge(record, pull, pace) if pull.written == record.commit and is_fully_pushed(record) else None


def _moved_at_forge(record: BranchRecord, pull: PullRequestRecord, pace: PollIntervals) -> tuple[Obstacle, str] | None:
    at_forge = pull.shown
    if at_forge is None:
        return None
    if not pull.is_open and pull.wanted is None:
        return Obstacle.CLOSED, f"its pull request is {at_forge.state}; open another one with `sandherd branches pr`"
    polled, written = at_forge.checked_at, pull.written_at
    push_is_shown = polled is not None and written is not None and polled - written >= pace.no_checks
    if pull.is_open and push_is_shown and at_forge.commit != record.commit:
        return Obstacle.HEAD_MOVED, f"its pull request is at {at_forge.commit[:12]}, which this herd did not push"
    return None


def merge_withdrawn(
    record: BranchRecord, *, wanted: str, obstacle: Obstacle, reason: str, now: datetime
) -> BranchRecord:
    """The branch after the request to merge the commit `wanted` was withdrawn. An event states the reason."""
    if pull_of(record).merge_wanted != wanted:
        return record
    changed = pull_of(record).changed(merge_wanted=None, problem=reason)
    event = refusal(record, PullRequestStep.MERGE, reason, obstacle.value)
    return record.model_copy(update={"pull": changed, "updated_at": now}).with_events(now, event)


def _with_push(record: BranchRecord) -> BranchRecord:
    """The branch with a requested push, which a pull request needs; unchanged if there is nothing to push."""
    needs_push = record.commit not in {record.pushed, record.base_commit}
    return record.model_copy(update={"push_wanted": True}) if needs_push else record


def is_reported_by(record: BranchRecord, request: CheckPullRequests) -> bool:
    """Whether the branch has an open pull request that a forge's notification (`request`) reports as changed."""
    pull = record.pull
    if record.local or record.state is not BranchState.LIVE or pull is None or not pull.is_open or pull.shown is None:
        return False
    is_named = (
        pull.shown.number in request.numbers
        or not {record.branch, record.pushed_as}.isdisjoint(request.branches)
        or not {record.commit, record.pushed, pull.shown.commit}.isdisjoint(request.commits)
    )
    return is_named and _host_and_path(record.url or record.repository) in {
        _host_and_path(url) for url in request.repositories
    }


def poll_hastened(record: BranchRecord, now: datetime) -> BranchRecord:
    """The branch whose pull request is polled as soon as `MIN_POLL_INTERVAL` allows, and then with short delays."""
    pull = pull_of(record)
    if not pull.is_open or pull.shown is None or record.state is not BranchState.LIVE:
        return record
    earliest = now if pull.shown.checked_at is None else max(now, pull.shown.checked_at + MIN_POLL_INTERVAL)
    if pull.poll_at is not None and pull.poll_at <= earliest:
        return record
    return record.model_copy(update={"pull": pull.changed(poll_at=earliest, polls=0)})


def _host_and_path(url: str) -> tuple[str, str]:
    """The host and the path of a repository's URL, in lower case and without a credential and `.git`."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "", url
    return parts.netloc.rpartition("@")[2].lower(), parts.path.strip("/").removesuffix(".git").lower()
