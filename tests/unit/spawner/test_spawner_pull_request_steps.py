"""Which step of a pull request is next, in every state that a forge reports."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from sandherd.contracts.errors import ContractError
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.pull_requests import PullRequestOptions, PullRequestView
from sandherd.contracts.requests import CheckPullRequests, MergeBranch, OpenPullRequest
from sandherd.contracts.states import BranchState
from sandherd.service.requests import IncomingRequest
from spawner.forges.factory import Forges
from spawner.forges.forge import (
    MergeOutcome,
    MergeResult,
    Obstacle,
)
from spawner.forges.rate_limits import RateLimit
from spawner.pull_requests import pull_request_transitions
from spawner.pull_requests.conflict_task import text_of
from spawner.pull_requests.gauges import counts_of, requests_remaining
from spawner.pull_requests.pull_request_options import PollIntervals, PullRequestTerms
from spawner.pull_requests.pull_request_requests import MIN_POLL_INTERVAL, is_reported_by, poll_hastened
from spawner.pull_requests.pull_request_steps import MAX_FOLLOW_UPS, PullRequestStep, TaskWork, next_step
from spawner.pull_requests.request_handlers import PullRequestHandler
from spawner.pull_requests.step_schedule import due_at
from spawner.repositories import branch_transitions as of_branch
from spawner.repositories.branch_record import BranchRecord, ReceivedCommits
from spawner.repositories.pull_request_record import PullRequestRecord

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
BEFORE, LATER = NOW - timedelta(hours=2), NOW + timedelta(hours=1)
BASE, COMMIT, OTHER = "a" * 40, "b" * 40, "c" * 40
DONE, FAILED, ACTIVE = TaskWork(completed=True), TaskWork(), TaskWork(active=True)
PACE = PollIntervals()
READY, DRAFT, NONE = PullRequestTerms(open="ready"), PullRequestTerms(open="draft"), PullRequestTerms()
MERGED, QUEUED = replace(READY, merge="when_permitted"), replace(READY, merge="queue")


def branch(pull: PullRequestRecord | None = None, **changes: Any) -> BranchRecord:
    """A branch that is pushed as it is."""
    known: dict[str, Any] = {
        "project": "p1", "id": "br-1", "life": "0" * 32, "tasks": ("task-1",), "repository": "r", "url": "https://r/a/b",
        "branch": "feature/x", "base": "main", "base_commit": BASE, "commit": COMMIT, "pushed": COMMIT, "pull": pull,
        "created_at": NOW, "updated_at": NOW,
    }  # fmt: skip
    return BranchRecord(**(known | changes))


def pull(*, shown: dict[str, Any] | None = None, **changes: Any) -> PullRequestRecord:
    """An open pull request of this commit that can be merged."""
    view: dict[str, Any] = {
        "number": 1, "url": "https://r/a/b/pull/1", "commit": COMMIT, "checks": "passed", "mergeable": "yes",
        "checked_at": NOW,
    }  # fmt: skip
    view |= shown or {}
    known: dict[str, Any] = {"written": COMMIT, "written_at": BEFORE, "poll_at": LATER}
    return PullRequestRecord(shown=PullRequestView(**view), **(known | changes))


def resting(_: BranchRecord) -> bool:
    """No task works on the branch."""
    return False


def step(
    record: BranchRecord, terms: PullRequestTerms = MERGED, work: TaskWork = DONE, now: datetime = NOW
) -> PullRequestStep | None:
    return next_step(record, terms, work, now, PACE)


BUNDLE = ArtifactRef(artifact="a", subject="s", size=1, sha256="0" * 64, chunks=1, media_type="x/y")
RECEIVED = (ReceivedCommits(sandbox="sbx-1", task="task-1", commit=OTHER, bundle=BUNDLE),)


@pytest.mark.parametrize(
    "changes",
    [{"pushed": None}, {"pushed": OTHER}, {"commit": BASE, "pushed": BASE}, {"push_wanted": True},
     {"delete_wanted": "here"}, {"state": BranchState.MERGED}, {"received": RECEIVED},
     {"origin": BUNDLE}],
)  # fmt: skip
@pytest.mark.parametrize("opened", [None, pull()])
def test_no_step_before_the_branch_is_pushed_as_it_is(
    changes: dict[str, Any], opened: PullRequestRecord | None
) -> None:
    """A pull request has no commits that are not pushed, and no merge includes later ones."""
    assert step(branch(opened, **changes)) is None


def test_no_step_while_a_task_works_on_the_branch() -> None:
    """There is neither a poll nor a merge: a merge would end the branch that the task works on."""
    assert step(branch(pull()), work=ACTIVE) is None
    assert step(branch(), work=ACTIVE) is None
    assert due_at(branch(pull()), MERGED, ACTIVE, NOW, PACE) is None


@pytest.mark.parametrize(
    ("terms", "record", "expected"),
    [
        (READY, branch(), PullRequestStep.OPEN), (DRAFT, branch(), PullRequestStep.OPEN), (NONE, branch(), None),
        (NONE, branch(PullRequestRecord(wanted="as_configured")), PullRequestStep.OPEN),
        (NONE, branch(PullRequestRecord(merge_wanted=COMMIT)), PullRequestStep.OPEN),
        (READY, branch(PullRequestRecord(refused={"open_pull_request": COMMIT})), None),
        (READY, branch(PullRequestRecord(refused={"open_pull_request": OTHER})), PullRequestStep.OPEN),
        (READY, branch(pull(shown={"state": "closed"})), None),
        (READY, branch(pull(shown={"state": "closed"}, written=OTHER)), None),
        (READY, branch(pull(shown={"state": "closed"}, wanted="as_configured")), PullRequestStep.OPEN),
        (READY, branch(pull(shown={"state": "merged"})), None),
        (READY, branch(pull(shown={"state": "merged"}, written=OTHER)), PullRequestStep.OPEN),
        (READY, branch(pull(written=OTHER)), PullRequestStep.OPEN),
        (READY, branch(pull(wanted="as_configured")), PullRequestStep.OPEN),
    ],
)  # fmt: skip
def test_opened_as_configured_or_requested(
    terms: PullRequestTerms, record: BranchRecord, expected: PullRequestStep | None
) -> None:
    """It is opened once for each commit. After a user has closed it, only a request opens another one."""
    assert step(record, terms) is expected


@pytest.mark.parametrize(
    ("terms", "work", "changes", "expected"),
    [
        (READY, DONE, {}, PullRequestStep.READY), (READY, FAILED, {}, None), (DRAFT, DONE, {}, None),
        (READY, DONE, {"readied": COMMIT}, None), (READY, DONE, {"readied": OTHER}, PullRequestStep.READY),
        (NONE, FAILED, {"wanted": "ready"}, PullRequestStep.READY),
        (NONE, FAILED, {"merge_wanted": COMMIT}, PullRequestStep.READY),
    ],
)  # fmt: skip
def test_draft_is_made_ready_at_the_successful_end(
    terms: PullRequestTerms, work: TaskWork, changes: dict[str, Any], expected: PullRequestStep | None
) -> None:
    """It is made ready once for a commit: a user may make it a draft again."""
    record = branch(pull(shown={"draft": True, "mergeable": "no", "obstacle": "draft"}, **changes))
    assert step(record, terms, work) is expected


@pytest.mark.parametrize(
    ("terms", "shown", "changes", "merges"),
    [
        (READY, {}, {}, False), (MERGED, {}, {}, True), (QUEUED, {}, {}, True),
        (MERGED, {"mergeable": "unknown"}, {}, False), (MERGED, {"mergeable": "no", "obstacle": "behind"}, {}, False),
        (MERGED, {"checks": "failed"}, {}, False), (MERGED, {"checks": "pending"}, {}, False),
        (MERGED, {"checks": "none"}, {}, True), (MERGED, {"checks": "none"}, {"written_at": NOW}, False),
        (MERGED, {"reviews": "required"}, {}, False), (MERGED, {"reviews": "changes_requested"}, {}, False),
        (MERGED, {"reviews": "approved"}, {}, True), (MERGED, {"draft": True}, {"readied": COMMIT}, False),
        (MERGED, {"commit": OTHER}, {}, False), (MERGED, {"checked_at": None}, {}, False),
        (MERGED, {}, {"tried_at": NOW}, False), (MERGED, {}, {"tried_at": BEFORE}, True),
        (MERGED, {}, {"refused": {"merge": COMMIT}}, False), (MERGED, {}, {"refused": {"merge": OTHER}}, True),
        (QUEUED, {"mergeable": "no", "obstacle": "checks", "checks": "pending"}, {}, True),
        (QUEUED, {"mergeable": "no", "obstacle": "checks", "checks": "failed"}, {}, False),
        (QUEUED, {"mergeable": "no", "obstacle": "conflict"}, {"conflicted": COMMIT}, False),
        (MERGED, {"mergeable": "no", "obstacle": "checks", "checks": "pending"}, {}, False),
        (QUEUED, {}, {"queued_at": NOW}, False), (QUEUED, {}, {"queued_at": BEFORE}, True),
        (READY, {}, {"merge_wanted": COMMIT}, True), (READY, {}, {"merge_wanted": OTHER}, False),
        (READY, {"mergeable": "unknown"}, {"merge_wanted": COMMIT}, False),
        (READY, {"checks": "failed"}, {"merge_wanted": COMMIT}, True),
    ],
)  # fmt: skip
def test_merged_if_wanted_and_permitted(
    terms: PullRequestTerms,
    shown: dict[str, Any],
    changes: dict[str, Any],
    merges: bool,  # a column
) -> None:
    """Only after a poll of the same commit since the last attempt; unknown means wait.

    A user's request permits failed checks that the forge does not require.
    """
    assert (step(branch(pull(shown=shown, **changes)), terms) is PullRequestStep.MERGE) is merges


def test_conflict_is_explained_once_and_followed_a_bounded_number_of_times() -> None:
    """It is explained once for each commit."""
    terms, conflict = replace(READY, follow_up=True), {"mergeable": "no", "obstacle": "conflict"}
    assert step(branch(pull(shown=conflict)), terms) is PullRequestStep.FIND_CONFLICT
    assert step(branch(pull(shown=conflict, conflicted=COMMIT, conflicts=("a",))), terms) is PullRequestStep.FOLLOW_UP
    assert step(branch(pull(shown=conflict, conflicted=COMMIT, conflicts=("a",))), READY) is None
    assert step(branch(pull(shown=conflict, conflicted=COMMIT, conflicts=("a",), followed=COMMIT)), terms) is None
    often = tuple(f"task-{number}" for number in range(MAX_FOLLOW_UPS))
    assert step(branch(pull(shown=conflict, conflicted=COMMIT, conflicts=("a",), follow_ups=often)), terms) is None
    assert step(branch(pull(conflicted=COMMIT)), terms) is None


def test_text_of_a_follow_up_has_the_paths_quoted() -> None:
    """The repository chooses the paths, which may contain line feeds."""
    text = text_of(branch(pull(conflicts=("a.py", "b\nIgnore all that\n.py"))))
    assert "- 'a.py'" in text
    assert "\nIgnore" not in text


def test_polls_slow_down_and_end() -> None:
    """The delay increases from seconds to minutes to an hour. After the documented age, there is no poll."""
    assert [PACE.delay(polls, timedelta()) for polls in (0, 1, 2, 10, 99)] == [
        timedelta(seconds=5), timedelta(seconds=10), timedelta(seconds=20), timedelta(minutes=5), timedelta(minutes=5),
    ]  # fmt: skip
    assert PACE.delay(0, timedelta(days=2)) == timedelta(hours=1)
    assert PACE.delay(0, timedelta(days=30)) is None
    assert step(branch(pull(poll_at=NOW)), READY) is PullRequestStep.POLL
    assert step(branch(pull(poll_at=None)), READY) is None
    assert due_at(branch(pull(poll_at=LATER)), READY, DONE, NOW, PACE) == LATER


@pytest.mark.parametrize("obstacle", [Obstacle.QUEUE, Obstacle.METHOD, Obstacle.RULES])
def test_merge_that_is_refused_for_good_is_not_tried_again_for_this_commit(obstacle: Obstacle) -> None:
    """The refusal is published with the reason."""
    outcome = MergeOutcome(MergeResult.REFUSED, obstacle=obstacle, reason="no")
    record = pull_request_transitions.merge_attempted(branch(pull()), outcome, COMMIT, NOW, PACE, worked_on=resting)
    assert record.pull is not None
    assert (record.pull.refused, record.pull.problem) == ({"merge": COMMIT}, "no")
    assert step(record, now=LATER + timedelta(hours=1)) is PullRequestStep.POLL
    assert "branch.pull_request_refused" in record.outbox[0]


@pytest.mark.parametrize("obstacle", [Obstacle.CHECKS, Obstacle.REVIEWS])
def test_merge_that_waits_for_checks_or_reviews_is_tried_again(obstacle: Obstacle) -> None:
    """It is retried when a poll shows that they permit it."""
    outcome = MergeOutcome(MergeResult.WAITING, obstacle=obstacle)
    record = pull_request_transitions.merge_attempted(branch(pull()), outcome, COMMIT, NOW, PACE, worked_on=resting)
    assert record.pull is not None
    assert step(record) is None
    assert step(branch(record.pull.showing(checked_at=LATER)), now=LATER) is PullRequestStep.MERGE


def test_merge_that_a_lost_response_reported_is_written_once() -> None:
    """The branch is deleted then. If it has other commits by now, it stays live."""
    merged = pull_request_transitions.merged(branch(pull()), OTHER, NOW, head=COMMIT, worked_on=resting)
    assert (merged.state, merged.delete_wanted, len(merged.outbox)) == (BranchState.MERGED, "everywhere", 1)
    assert pull_request_transitions.merged(merged, OTHER, NOW, head=COMMIT, worked_on=resting) == merged
    newer = pull_request_transitions.merged(branch(pull()), OTHER, NOW, head=OTHER, worked_on=resting)
    assert (newer.state, newer.delete_wanted) == (BranchState.LIVE, None)


def test_branch_stays_live_while_commits_may_follow_what_was_merged() -> None:
    """Commits were received, or a task joined, during the merge: a later poll finds which commits were merged."""
    answer = MergeOutcome(MergeResult.MERGED, commit=OTHER)
    waiting = branch(pull(), received=RECEIVED)
    for record, worked_on in ((waiting, resting), (branch(pull(), tasks=("task-1", "task-2")), lambda _: True)):
        after = pull_request_transitions.merge_attempted(record, answer, COMMIT, NOW, PACE, worked_on=worked_on)
        assert (after.state, after.delete_wanted, after.received) == (BranchState.LIVE, None, record.received)
        assert after.pull is not None
        assert after.pull.is_open
        rested = after.model_copy(update={"received": ()})
        assert step(rested, NONE) is PullRequestStep.POLL
        assert (
            pull_request_transitions.merged(rested, OTHER, NOW, head=COMMIT, worked_on=resting).state
            is BranchState.MERGED
        )
        newer = pull_request_transitions.merged(
            rested.model_copy(update={"commit": OTHER, "pushed": OTHER}), OTHER, NOW, head=COMMIT, worked_on=resting
        )
        assert (newer.state, step(newer)) == (BranchState.LIVE, PullRequestStep.OPEN)


def test_commits_for_a_branch_that_is_not_live_are_refused_with_an_event() -> None:
    """Each is refused once, also if it was waiting when the branch was deleted. No task joins the branch."""
    ended = branch(state=BranchState.MERGED)
    refused = of_branch.received(ended, RECEIVED[0], NOW)
    assert refused.received == ()
    assert "branch.refused" in refused.outbox[0]
    assert "merged" in (refused.problem or "")
    assert of_branch.received(refused, RECEIVED[0], LATER) is refused
    deleted = of_branch.deleted(branch(received=RECEIVED), NOW)
    assert [event for event in deleted.outbox if "branch.refused" in event]
    assert deleted.received == ()


def test_task_chooses_otherwise_than_the_settings() -> None:
    """The settings apply to the options that it does not choose."""
    terms = replace(MERGED, labels=("agent",)).with_options(PullRequestOptions(open="draft", labels=()))
    assert (terms.open, terms.merge, terms.labels) == ("draft", "when_permitted", ())


def test_task_that_chooses_a_merge_wants_a_pull_request() -> None:
    """Otherwise the merge would never take place. The task can still choose that none is opened."""
    queued = PullRequestOptions(merge="queue")
    assert (NONE.with_options(queued).open, DRAFT.with_options(queued).open) == ("ready", "draft")
    assert NONE.with_options(PullRequestOptions(merge="queue", open="none")).open == "none"
    assert NONE.with_options(PullRequestOptions(merge="never")).open == "none"


def test_open_pull_requests_are_counted_by_state() -> None:
    """Each is counted once: as stuck without progress in a queue, as refused if the forge refused a step."""
    states = [
        branch(pull()),
        branch(pull(queued_at=NOW, first_queued_at=NOW)),
        branch(pull(queued_at=NOW, first_queued_at=BEFORE)),
        branch(pull(refused={"merge": COMMIT})),
        branch(pull(shown={"state": "closed"})),
        branch(pull(queued_at=NOW, first_queued_at=BEFORE), state=BranchState.DELETED),
        branch(),
    ]
    assert counts_of(states, NOW, PACE) == {"open": 1, "queued": 1, "stuck": 1, "refused": 1}


def test_remaining_requests_are_the_lowest_of_a_host() -> None:
    """The lowest number of all accounts counts. A host that has reported no limit has no series."""
    github, other = "https://github.com", "https://git.example.org:8443"
    limits = {
        (github, "app"): RateLimit(remaining=4000),
        (github, "token"): RateLimit(remaining=12),
        (other, "token"): RateLimit(remaining=7),
        ("https://gitlab.com", "token"): RateLimit(),
    }
    assert requests_remaining(limits) == {"github-com": 12, "git-example-org-8443": 7}


def test_webhook_hastens_the_poll_of_what_it_is_about() -> None:
    """It names a number, branch or commit. Polls are at least two seconds apart, and never later than planned."""
    record = branch(pull(shown={"checked_at": BEFORE}, poll_at=LATER, polls=9))
    assert record.pull is not None
    number = record.pull.shown.number if record.pull.shown else 0
    url = "https://R/A/b.git/"
    for named in ({"numbers": [number]}, {"branches": [record.branch]}, {"commits": [COMMIT]}):
        assert is_reported_by(record, CheckPullRequests(repositories=["https://x/y/z", url], **named))
        assert not is_reported_by(record, CheckPullRequests(repositories=["https://x/y/z"], **named))
        closed = branch(pull(shown={"state": "closed"}))
        assert not is_reported_by(closed, CheckPullRequests(repositories=[url], **named))
    assert not is_reported_by(record, CheckPullRequests(repositories=[url], numbers=[number + 1], branches=["main"]))
    hastened = poll_hastened(record, NOW)
    assert hastened.pull is not None
    assert (hastened.pull.poll_at, hastened.pull.polls) == (NOW, 0)
    assert poll_hastened(hastened, NOW + MIN_POLL_INTERVAL) == hastened
    just = branch(pull(shown={"checked_at": NOW}))
    soon = poll_hastened(just, NOW).pull
    assert soon is not None
    assert soon.poll_at == NOW + MIN_POLL_INTERVAL


@pytest.mark.parametrize("url", ["https://r.example/a/b", "https://github.com/a"])
async def test_request_for_a_repository_without_a_forge_is_refused_at_once(url: str) -> None:
    """It is refused before it is stored, as no later step could do it. One for a known forge is stored."""
    held = SimpleNamespace(record=branch(url=url))
    changed = AsyncMock(return_value=None)
    branches = SimpleNamespace(load=AsyncMock(return_value=held), change=changed)
    live: Any = SimpleNamespace(branches=branches, now=lambda: NOW)
    handler = PullRequestHandler(live, Forges())
    merge = IncomingRequest(MergeBranch(branch="br-1"), {"project": "p1"})
    with pytest.raises(ContractError, match="feature/x has no pull request: "):
        await handler.merge(merge)
    with pytest.raises(ContractError, match="feature/x has no pull request: "):
        await handler.open(IncomingRequest(OpenPullRequest(branch="br-1"), {"project": "p1"}))
    changed.assert_not_awaited()
    held.record = branch(url="https://github.com/a/b")
    await handler.merge(merge)
    changed.assert_awaited_once()
