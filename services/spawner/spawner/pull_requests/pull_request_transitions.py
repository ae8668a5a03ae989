"""State changes of pull requests, as pure functions from a branch's record and a fact to the next record.

Most functions are named for the state that they return, as `opened` for a branch whose pull request was opened. Most
return the record unchanged if the branch has another commit by now, or is no longer live.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from sandherd.contracts.events import EventData
from sandherd.contracts.events.branch import (
    MAX_PATHS,
    BranchConflicted,
    BranchMerged,
    BranchPullRequestClosed,
    BranchPullRequestOpened,
    BranchPullRequestRefused,
    BranchPullRequestUpdated,
)
from sandherd.contracts.states import BranchState
from spawner.forges.forge import MergeOutcome, MergeResult, PullRequest, PullRequestState, PullRequestStatus
from spawner.pull_requests.pull_request_options import PollIntervals
from spawner.pull_requests.pull_request_steps import CONFLICT, PullRequestStep, target_of
from spawner.pull_requests.pull_request_view import differs, opened_view, polled_view
from spawner.repositories.branch_record import BranchRecord
from spawner.repositories.branch_transitions import NEEDS_APPROVAL
from spawner.repositories.pull_request_record import PullRequestRecord

DENIED_DELAY: Final = timedelta(hours=1)
"""The delay of the next poll after a forge has refused one. The forge's token may be replaced meanwhile."""
IsWorkedOn = Callable[[BranchRecord], bool]
"""Whether a task may still save commits of the branch. A task may have joined the branch during the poll."""
_NOT_POLLED: Final = "not polled: "
"""The prefix of the problem of a pull request whose last poll was refused."""
_APPROVAL_NEEDED: Final = "merged with its base as it is now, it changes paths that a user has to approve"
_TEMPORARY_OBSTACLES: Final = frozenset({"conflict", "checks", "reviews", "behind"})
"""Obstacles that polls also report. As soon as a poll no longer reports the obstacle, a merge may be retried."""


def pull_of(record: BranchRecord) -> PullRequestRecord:
    """The record of the branch's pull request; an empty one if there is none yet."""
    return record.pull or PullRequestRecord()


def opened(
    record: BranchRecord,
    pull_request: PullRequest,
    commit: str,
    now: datetime,
    *,
    ready: bool,
    task_fields: Mapping[str, Any],
    pace: PollIntervals,
    worked_on: IsWorkedOn,
) -> BranchRecord:
    """The branch after its pull request was found or created with the title and body for this commit.

    `pull_request`: as the forge has it now. `ready`: it was to be ready for review. `task_fields`: the fields `task`,
    `text` and `costs` for its record. If the pull request is merged or closed, the forge found it by this commit, or it
    is the pull request in the record, which does not have this commit.
    """
    if record.state is not BranchState.LIVE or record.commit != commit:
        return record
    pull = pull_of(record)
    if (
        pull.is_open
        and pull.shown
        and pull.shown.number == pull_request.number
        and pull_request.state is not PullRequestState.OPEN
    ):
        return _after_end(record, pull_request, now, worked_on)
    written = _with_view(record, pull_request, commit, now, ready=ready, pace=pace)
    written = written.model_copy(update={"pull": pull_of(written).changed(**task_fields)})
    return written if pull_request.state is PullRequestState.OPEN else _after_end(written, pull_request, now, worked_on)


def _after_end(record: BranchRecord, pull_request: PullRequest, now: datetime, worked_on: IsWorkedOn) -> BranchRecord:
    """The branch after its pull request was merged or closed at the forge.

    Unless the branch's commit was merged, a user's request to merge it is refused.
    """
    if pull_request.state is PullRequestState.CLOSED:
        return _without_wanted_merge(record, _closed(record, now), "its pull request was closed", now)
    commit, head = pull_request.merged_commit or pull_request.head_commit, pull_request.head_commit
    after = merged(record, commit, now, head=head, worked_on=worked_on)
    if record.commit == head:
        return after
    return _without_wanted_merge(record, after, f"its pull request was merged at {head[:12]}, without this commit", now)


def _without_wanted_merge(before: BranchRecord, after: BranchRecord, reason: str, now: datetime) -> BranchRecord:
    """The branch `after` with the reason why a merge that a user wanted `before` will not take place.

    It is `after` if no merge was wanted, if nothing has changed, or if the branch is not live.
    """
    if pull_of(before).merge_wanted is None or after is before or after.state is not BranchState.LIVE:
        return after
    return _with_pull(
        after, pull_of(after).changed(problem=reason), now, refusal(before, PullRequestStep.MERGE, reason, "closed")
    )


def _with_view(
    record: BranchRecord, pull_request: PullRequest, commit: str, now: datetime, *, ready: bool, pace: PollIntervals
) -> BranchRecord:
    pull = pull_of(record)
    is_recorded = pull.shown is not None and pull.shown.number == pull_request.number
    view = opened_view(pull_request, pull if is_recorded else PullRequestRecord())
    unapplied = "; ".join(pull_request.unapplied) or None
    wanted = "ready" if pull.wanted == "ready" and pull_request.draft else None
    changed = pull.changed(
        shown=view, written=commit, written_at=now, changed_at=now, polls=0, poll_at=now + pace.first, wanted=wanted,
        queued_at=None, first_queued_at=None, readied=commit if ready and not pull_request.draft else pull.readied,
        problem=unapplied, refused={}, unseen=None,
    )  # fmt: skip
    if is_recorded:
        event: EventData = BranchPullRequestUpdated(
            **_branch_fields(record), **_pull_fields(changed), pull_request=view
        )
    else:
        event = BranchPullRequestOpened(
            **_branch_fields(record), **_pull_fields(changed), commit=commit, draft=view.draft
        )
    return _with_pull(record, changed, now, event)


def made_ready(record: BranchRecord, commit: str, now: datetime) -> BranchRecord:
    """The branch after its pull request was made ready for review."""
    pull = pull_of(record)
    if record.commit != commit or not pull.is_open:
        return record
    changed = pull.showing(draft=False, mergeable="unknown", obstacle=None)
    changed = changed.changed(readied=commit, wanted=None, polls=0, poll_at=now, changed_at=now)
    return _with_pull(record, changed, now, *_update_events(record, pull, changed))


def polled(
    record: BranchRecord, status: PullRequestStatus, now: datetime, pace: PollIntervals, *, worked_on: IsWorkedOn
) -> BranchRecord:
    """The branch after its forge was polled for the pull request."""
    pull, pull_request = pull_of(record), status.pull_request
    if pull.shown is None or pull.shown.number != pull_request.number or record.state is not BranchState.LIVE:
        return record
    if pull_request.state is not PullRequestState.OPEN:
        return _after_end(record, pull_request, now, worked_on)
    view = polled_view(pull.shown, status, now)
    is_changed = differs(view, pull.shown)
    changed_at = now if is_changed else (pull.changed_at or now)
    polls = 0 if is_changed else pull.polls + 1
    delay = pace.delay(polls, now - changed_at)
    has_conflict = view.obstacle == CONFLICT
    changed = pull.changed(
        shown=view, changed_at=changed_at, polls=polls, poll_at=None if delay is None else now + delay,
        queued_at=None if has_conflict else pull.queued_at,
        first_queued_at=None if has_conflict else pull.first_queued_at,
        conflicted=pull.conflicted if has_conflict or pull.conflicts else None,
        problem=None if (pull.problem or "").startswith(_NOT_POLLED) else pull.problem,
    )  # fmt: skip
    return _with_pull(record, changed, now, *(_update_events(record, pull, changed) if is_changed else []))


def not_polled(record: BranchRecord, reason: str, code: str, now: datetime, pace: PollIntervals) -> BranchRecord:
    """The branch after its forge refused a poll. The next poll is much later (`DENIED_DELAY`)."""
    pull = pull_of(record)
    changed_at = pull.changed_at or now
    poll_at = None if pace.delay(pull.polls, now - changed_at) is None else now + DENIED_DELAY
    problem = f"{_NOT_POLLED}{reason}"
    changed = pull.changed(poll_at=poll_at, changed_at=changed_at, problem=problem)
    event = refusal(record, PullRequestStep.POLL, reason, code)
    return _with_pull(record, changed, now, *([] if pull.problem == problem else [event]))


def refused(
    record: BranchRecord, step: PullRequestStep, commit: str, *, reason: str, code: str, now: datetime
) -> BranchRecord:
    """The branch after its forge refused a step. The step is retried for another commit, or at a user's request."""
    if record.commit != commit or record.state is not BranchState.LIVE:
        return record
    pull = pull_of(record)
    changed = pull.changed(
        refused={**pull.refused, step.value: commit}, problem=reason, wanted=None, merge_wanted=None, unseen=None,
        followed=commit if step is PullRequestStep.FOLLOW_UP else pull.followed,
    )  # fmt: skip
    return _with_pull(record, changed, now, refusal(record, step, reason, code))


def merge_needs_approval(record: BranchRecord, commit: str, paths: tuple[str, ...], now: datetime) -> BranchRecord:
    """The branch after its merge was refused until a user approves these paths, because its base has changed."""
    if record.commit != commit or record.state is not BranchState.LIVE:
        return record
    with_paths = record.model_copy(update={"approve": paths[:MAX_PATHS]})
    return refused(with_paths, PullRequestStep.MERGE, commit, reason=_APPROVAL_NEEDED, code=NEEDS_APPROVAL, now=now)


def merge_attempted(
    record: BranchRecord,
    outcome: MergeOutcome,
    commit: str,
    now: datetime,
    pace: PollIntervals,
    *,
    worked_on: IsWorkedOn,
) -> BranchRecord:
    """The branch after the forge's reply to a request to merge this commit."""
    pull = pull_of(record)
    if outcome.result is MergeResult.MERGED:
        return merged(record, outcome.commit or commit, now, head=commit, worked_on=worked_on)
    if record.state is not BranchState.LIVE or record.commit != commit or not pull.is_open:
        return record
    delay = pace.delay(pull.polls, timedelta()) or pace.slow
    tried = pull.changed(tried_at=now, polls=pull.polls + 1, poll_at=now + delay)
    obstacle = outcome.obstacle.value if outcome.obstacle else None
    if outcome.result is MergeResult.QUEUED:
        changed = tried.changed(
            queued_at=now, first_queued_at=pull.first_queued_at or now, merge_wanted=None, problem=None
        )
        return _with_pull(record, changed, now, *([] if pull.queued_at else _update_events(record, pull, changed)))
    if outcome.result is MergeResult.WAITING or obstacle in {"head_moved", "closed", "draft"}:
        return _with_pull(record, tried, now)
    reason = outcome.reason or f"the forge does not merge it ({obstacle})"
    blocked = tried.showing(mergeable="no", obstacle=obstacle)
    if obstacle in _TEMPORARY_OBSTACLES:
        events = [refusal(record, PullRequestStep.MERGE, reason, obstacle or "")] if pull.merge_wanted else []
        return _with_pull(record, blocked.changed(merge_wanted=None, problem=reason), now, *events)
    return refused(
        record.model_copy(update={"pull": blocked}),
        PullRequestStep.MERGE,
        commit,
        reason=reason,
        code=obstacle or "refused",
        now=now,
    )


def merged(record: BranchRecord, commit: str, now: datetime, *, head: str, worked_on: IsWorkedOn) -> BranchRecord:
    """The branch after its pull request, with the head `head`, was merged as `commit`. Its deletion is requested.

    While a task may still add commits to the branch, only the next poll is scheduled. If the branch's commit is not
    `head`, the branch stays live, and its commits get another pull request.
    """
    pull = pull_of(record)
    if record.state is not BranchState.LIVE or not pull.is_open:
        return record
    if record.received or worked_on(record):
        return _with_pull(record, pull.changed(poll_at=now), now)
    ended = pull.showing(state="merged", merged_commit=commit, mergeable="no", obstacle="closed", checked_at=now)
    ended = ended.changed(poll_at=None, queued_at=None, merge_wanted=None, wanted=None, problem=None, changed_at=now)
    if record.commit != head:
        return _with_pull(record, ended, now, *_update_events(record, pull, ended))
    event = BranchMerged(**_branch_fields(record), commit=commit, pr_number=pull.shown.number if pull.shown else None)
    closed = record.entering(BranchState.MERGED, delete_wanted="everywhere", push_wanted=False)
    return _with_pull(closed, ended, now, event)


def _closed(record: BranchRecord, now: datetime) -> BranchRecord:
    pull = pull_of(record)
    ended = pull.showing(state="closed", mergeable="no", obstacle="closed", checked_at=now)
    ended = ended.changed(poll_at=None, queued_at=None, merge_wanted=None, wanted=None, changed_at=now)
    return _with_pull(record, ended, now, BranchPullRequestClosed(**_branch_fields(record), **_pull_fields(pull)))


def conflicted(record: BranchRecord, commit: str, paths: list[str], now: datetime) -> BranchRecord:
    """The branch whose commit conflicts with its base in these paths. `paths` is empty if there is no conflict."""
    pull = pull_of(record)
    if record.commit != commit or not pull.is_open or pull.conflicted == commit:
        return record
    files = paths[:MAX_PATHS]
    changed = pull.changed(conflicted=commit, conflicted_at=now, conflicts=tuple(files))
    event = BranchConflicted(**_branch_fields(record), files=files, commit=commit, base=target_of(record))
    return _with_pull(record, changed, now, *([event] if files else []))


def followed_up(record: BranchRecord, commit: str, task: str, now: datetime) -> BranchRecord:
    """The branch after a task was submitted that resolves the conflicts of this commit."""
    pull = pull_of(record)
    if pull.conflicted != commit or task in pull.follow_ups:
        return record
    return _with_pull(record, pull.changed(followed=commit, follow_ups=(*pull.follow_ups, task)), now)


def _branch_fields(record: BranchRecord) -> dict[str, Any]:
    """The fields of an event that name the branch."""
    return {"repository": record.repository, "branch": record.branch}


def _pull_fields(pull: PullRequestRecord) -> dict[str, Any]:
    """The fields of an event that name the pull request."""
    return {"pr_url": pull.shown.url, "pr_number": pull.shown.number} if pull.shown else {}


def _update_events(record: BranchRecord, before: PullRequestRecord, after: PullRequestRecord) -> list[EventData]:
    view = after.view()
    return (
        []
        if view is None
        else [BranchPullRequestUpdated(**_branch_fields(record), **_pull_fields(before), pull_request=view)]
    )


def refusal(record: BranchRecord, step: PullRequestStep, reason: str, code: str) -> EventData:
    """The event that a step was refused, with the reason."""
    return BranchPullRequestRefused(
        **_branch_fields(record), commit=record.commit, step=step.value, reason=reason, code=code
    )


def _with_pull(record: BranchRecord, pull: PullRequestRecord, now: datetime, *events: EventData) -> BranchRecord:
    return record.model_copy(update={"pull": pull, "updated_at": now}).with_events(now, *events)
