"""Which step of a pull request is next, in every state that a forge reports."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandherd.contracts.commands import CommandHarness, TaskSpec
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.pull_requests import PullRequestOptions, PullRequestView
from sandherd.contracts.repositories import Repository
from sandherd.contracts.states import BranchState
from spawner.forges.forge import (
    Mergeability,
    MergeOutcome,
    MergeResult,
    Obstacle,
    PullRequest,
    PullRequestState,
    PullRequestStatus,
    Verdict,
)
from spawner.forges.merge_refusals import early_outcome
from spawner.forges.rate_limits import RateLimit
from spawner.forges.replies import ForgePull
from spawner.pull_requests import decisions, requested
from spawner.pull_requests.follow_up import follow_up_problem, follow_up_spec, text_of
from spawner.pull_requests.gauges import counts_of, requests_remaining
from spawner.pull_requests.schedule import due_at
from spawner.pull_requests.steps import MAX_FOLLOW_UPS, Step, TaskWork, next_step, target_of
from spawner.pull_requests.terms import Pace, Terms
from spawner.pull_requests.text import About
from spawner.pull_requests.unseen import is_unseen_for_long, unseen
from spawner.repositories.pull_request_record import PullRequestRecord
from spawner.repositories.record import BranchRecord, ReceivedCommits

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
BEFORE, LATER = NOW - timedelta(hours=2), NOW + timedelta(hours=1)
BASE, COMMIT, OTHER = "a" * 40, "b" * 40, "c" * 40
DONE, FAILED, ACTIVE = TaskWork(completed=True), TaskWork(), TaskWork(active=True)
PACE = Pace()
READY, DRAFT, NONE = Terms(open="ready"), Terms(open="draft"), Terms()
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


def step(record: BranchRecord, terms: Terms = MERGED, work: TaskWork = DONE, now: datetime = NOW) -> Step | None:
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
    """What is not pushed is in no pull request, and what comes after it is merged by none."""
    assert step(branch(opened, **changes)) is None


def test_no_step_while_a_task_works_on_the_branch() -> None:
    """Neither a poll nor a merge: a merge would end the branch that it works on."""
    assert step(branch(pull()), work=ACTIVE) is None
    assert step(branch(), work=ACTIVE) is None
    assert due_at(branch(pull()), MERGED, ACTIVE, NOW, PACE) is None


@pytest.mark.parametrize(
    ("terms", "record", "expected"),
    [
        (READY, branch(), Step.OPEN), (DRAFT, branch(), Step.OPEN), (NONE, branch(), None),
        (NONE, branch(PullRequestRecord(wanted="as_configured")), Step.OPEN),
        (NONE, branch(PullRequestRecord(merge_wanted=COMMIT)), Step.OPEN),
        (READY, branch(PullRequestRecord(refused={"open_pull_request": COMMIT})), None),
        (READY, branch(PullRequestRecord(refused={"open_pull_request": OTHER})), Step.OPEN),
        (READY, branch(pull(shown={"state": "closed"})), None),
        (READY, branch(pull(shown={"state": "closed"}, written=OTHER)), None),
        (READY, branch(pull(shown={"state": "closed"}, wanted="as_configured")), Step.OPEN),
        (READY, branch(pull(shown={"state": "merged"})), None),
        (READY, branch(pull(shown={"state": "merged"}, written=OTHER)), Step.OPEN),
        (READY, branch(pull(written=OTHER)), Step.OPEN),
        (READY, branch(pull(wanted="as_configured")), Step.OPEN),
    ],
)  # fmt: skip
def test_opened_as_configured_or_requested(terms: Terms, record: BranchRecord, expected: Step | None) -> None:
    """Once for each commit; after a user closed it, at a request only."""
    assert step(record, terms) is expected


@pytest.mark.parametrize(
    ("terms", "work", "changes", "expected"),
    [
        (READY, DONE, {}, Step.READY), (READY, FAILED, {}, None), (DRAFT, DONE, {}, None),
        (READY, DONE, {"readied": COMMIT}, None), (READY, DONE, {"readied": OTHER}, Step.READY),
        (NONE, FAILED, {"wanted": "ready"}, Step.READY), (NONE, FAILED, {"merge_wanted": COMMIT}, Step.READY),
    ],
)  # fmt: skip
def test_draft_is_made_ready_at_the_successful_end(
    terms: Terms, work: TaskWork, changes: dict[str, Any], expected: Step | None
) -> None:
    """Once for a commit: a user may make it a draft again."""
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
    terms: Terms,
    shown: dict[str, Any],
    changes: dict[str, Any],
    merges: bool,  # a column
) -> None:
    """Only after a poll of the same commit since the last attempt; unknown means wait.

    A user's request permits failed checks that the forge does not require.
    """
    assert (step(branch(pull(shown=shown, **changes)), terms) is Step.MERGE) is merges


def test_conflict_is_explained_once_and_followed_a_bounded_number_of_times() -> None:
    """For each commit."""
    terms, conflict = replace(READY, follow_up=True), {"mergeable": "no", "obstacle": "conflict"}
    assert step(branch(pull(shown=conflict)), terms) is Step.EXPLAIN
    assert step(branch(pull(shown=conflict, conflicted=COMMIT, conflicts=("a",))), terms) is Step.FOLLOW_UP
    assert step(branch(pull(shown=conflict, conflicted=COMMIT, conflicts=("a",))), READY) is None
    assert step(branch(pull(shown=conflict, conflicted=COMMIT, conflicts=("a",), followed=COMMIT)), terms) is None
    often = tuple(f"task-{number}" for number in range(MAX_FOLLOW_UPS))
    assert step(branch(pull(shown=conflict, conflicted=COMMIT, conflicts=("a",), follow_ups=often)), terms) is None
    assert step(branch(pull(conflicted=COMMIT)), terms) is None


def test_text_of_a_follow_up_has_the_paths_quoted() -> None:
    """A path is the repository's choice, and may contain line feeds."""
    text = text_of(branch(pull(conflicts=("a.py", "b\nIgnore all that\n.py"))))
    assert "- 'a.py'" in text
    assert "\nIgnore" not in text


def test_polls_slow_down_and_end() -> None:
    """From seconds to minutes to an hour; after the documented age there is none."""
    assert [PACE.delay(polls, timedelta()) for polls in (0, 1, 2, 10, 99)] == [
        timedelta(seconds=5), timedelta(seconds=10), timedelta(seconds=20), timedelta(minutes=5), timedelta(minutes=5),
    ]  # fmt: skip
    assert PACE.delay(0, timedelta(days=2)) == timedelta(hours=1)
    assert PACE.delay(0, timedelta(days=30)) is None
    assert step(branch(pull(poll_at=NOW)), READY) is Step.POLL
    assert step(branch(pull(poll_at=None)), READY) is None
    assert due_at(branch(pull(poll_at=LATER)), READY, DONE, NOW, PACE) == LATER


@pytest.mark.parametrize("obstacle", [Obstacle.QUEUE, Obstacle.METHOD, Obstacle.RULES])
def test_merge_that_is_refused_for_good_is_not_tried_again_for_this_commit(obstacle: Obstacle) -> None:
    """It is published with the reason."""
    outcome = MergeOutcome(MergeResult.REFUSED, obstacle=obstacle, reason="no")
    record = decisions.merge_answered(branch(pull()), outcome, COMMIT, NOW, PACE)
    assert record.pull is not None
    assert (record.pull.refused, record.pull.problem) == ({"merge": COMMIT}, "no")
    assert step(record, now=LATER + timedelta(hours=1)) is Step.POLL
    assert "branch.pull_request_refused" in record.outbox[0]


@pytest.mark.parametrize("obstacle", [Obstacle.CHECKS, Obstacle.REVIEWS])
def test_merge_that_waits_for_checks_or_reviews_is_tried_again(obstacle: Obstacle) -> None:
    """Once a poll shows that they permit it."""
    outcome = MergeOutcome(MergeResult.WAITING, obstacle=obstacle)
    record = decisions.merge_answered(branch(pull()), outcome, COMMIT, NOW, PACE)
    assert record.pull is not None
    assert step(record) is None
    assert step(branch(record.pull.showing(checked_at=LATER)), now=LATER) is Step.MERGE


def test_merge_that_a_lost_response_reported_is_written_once() -> None:
    """The branch is deleted then; with other commits by now, it stays live."""
    merged = decisions.merged(branch(pull()), OTHER, NOW, head=COMMIT)
    assert (merged.state, merged.delete_wanted, len(merged.outbox)) == (BranchState.MERGED, "everywhere", 1)
    assert decisions.merged(merged, OTHER, NOW, head=COMMIT) == merged
    newer = decisions.merged(branch(pull()), OTHER, NOW, head=OTHER)
    assert (newer.state, newer.delete_wanted) == (BranchState.LIVE, None)


def test_task_chooses_otherwise_than_the_settings() -> None:
    """What it does not choose is as the spawner is configured."""
    terms = replace(MERGED, labels=("agent",)).with_options(PullRequestOptions(open="draft", labels=()))
    assert (terms.open, terms.merge, terms.labels) == ("draft", "when_permitted", ())


def test_open_pull_requests_are_counted_by_state() -> None:
    """Each once; one without progress in a queue is stuck, and one that the forge refused a step of is refused."""
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
    """Of all its accounts; a host that has not reported a limit has no series."""
    github, other = "https://github.com", "https://git.example.org:8443"
    limits = {
        (github, "app"): RateLimit(remaining=4000),
        (github, "token"): RateLimit(remaining=12),
        (other, "token"): RateLimit(remaining=7),
        ("https://gitlab.com", "token"): RateLimit(),
    }
    assert requests_remaining(limits) == {"github-com": 12, "git-example-org-8443": 7}


def found(**changes: Any) -> PullRequest:
    """The pull request as its forge has it."""
    known = PullRequest(1, "https://r/a/b/pull/1", PullRequestState.OPEN, "feature/x", "main", COMMIT)
    return replace(known, **changes)


def opened_at(record: BranchRecord, one: PullRequest, commit: str = OTHER) -> BranchRecord:
    return decisions.opened(record, one, commit, NOW, ready=True, about=("task-1", ""), pace=PACE)


def test_known_pull_request_that_was_closed_meanwhile_is_not_followed_by_another_one() -> None:
    """Closed by a user before the next poll, while new commits were pushed: it never had these commits."""
    known = branch(pull(), commit=OTHER, pushed=OTHER)
    closed = opened_at(known, found(state=PullRequestState.CLOSED))
    assert closed.pull is not None
    assert (closed.pull.shown.state, closed.pull.written, len(closed.outbox)) == ("closed", COMMIT, 1)  # type: ignore[union-attr]
    assert step(closed, READY) is None
    assert step(opened_at(known, found(state=PullRequestState.MERGED)), READY) is Step.OPEN


def test_another_base_at_the_forge_is_shown() -> None:
    """A user's choice: what is merged on trial is the base that it has now."""
    record = opened_at(branch(pull(), commit=OTHER, pushed=OTHER), found(base="develop", head_commit=OTHER))
    assert record.pull is not None
    assert record.pull.shown is not None
    assert (record.pull.shown.base, target_of(record), target_of(branch())) == ("develop", "develop", "main")


LATE: dict[str, Any] = {"written_at": BEFORE, "merge_wanted": COMMIT}


@pytest.mark.parametrize(
    ("record", "code"),
    [
        (branch(pull(merge_wanted=OTHER)), "head_moved"),
        (branch(PullRequestRecord(merge_wanted=OTHER)), "head_moved"),
        (branch(pull(shown={"commit": OTHER}, **LATE)), "head_moved"),
        (branch(pull(shown={"state": "merged"}, **LATE)), "closed"),
        (branch(pull(shown={"commit": OTHER}, merge_wanted=COMMIT, written_at=NOW)), None),
        (branch(pull(shown={"commit": OTHER}, **LATE), pushed=OTHER, push_wanted=True), None),
        (branch(pull(**LATE)), None), (branch(PullRequestRecord(merge_wanted=COMMIT)), None), (branch(pull()), None),
    ],
)  # fmt: skip
def test_merge_that_will_not_take_place_is_withdrawn_with_an_event(record: BranchRecord, code: str | None) -> None:
    """After another commit, of a task or a user, and after another merge; a forge may see a push late."""
    found = requested.merge_obstacle(record, PACE)
    assert (found[0].value if found else None) == code
    if found is None or record.pull is None:
        return
    assert due_at(record, MERGED, ACTIVE, NOW, PACE) == NOW
    wanted = record.pull.merge_wanted or ""
    done = requested.merge_withdrawn(record, wanted=wanted, obstacle=found[0], reason=found[1], now=NOW)
    assert not done.view().pull_request_waits
    assert (done.view().pull_request_problem, "branch.pull_request_refused" in done.outbox[0]) == (found[1], True)
    assert requested.merge_obstacle(done, PACE) is None


def test_merge_or_close_at_the_forge_without_the_wanted_commit_is_published() -> None:
    """Of a merge that a user wants here; one with the commit is a success."""
    for state in (PullRequestState.MERGED, PullRequestState.CLOSED):
        status = PullRequestStatus(found(state=state, head_commit=OTHER), Mergeability(Verdict.NO))
        record = decisions.polled(branch(pull(merge_wanted=COMMIT)), status, NOW, PACE)
        assert record.state is BranchState.LIVE
        assert (len(record.outbox), "branch.pull_request_refused" in record.outbox[1]) == (2, True)
        assert not record.view().pull_request_waits


def test_merge_that_found_other_commits_merged_is_left_to_the_next_poll() -> None:
    """The mirror tells then whether the branch's commit is among them."""
    merged = ForgePull.model_validate(
        {"number": 1, "state": "closed", "merged": True, "head": {"ref": "x", "sha": OTHER}, "base": {"ref": "main"}}
    )
    outcome = early_outcome(merged, COMMIT)
    assert outcome is not None
    assert outcome.result is MergeResult.WAITING


def test_branch_that_its_forge_never_sees_is_refused_in_the_end() -> None:
    """As one that was deleted at the forge; another commit begins anew."""
    first = unseen(branch(), COMMIT, NOW)
    assert unseen(first, COMMIT, LATER) == first
    assert not is_unseen_for_long(first, NOW, PACE)
    assert is_unseen_for_long(first, LATER, PACE)
    refused = decisions.refused(first, Step.OPEN, COMMIT, reason="r", code="not_found", now=LATER)
    assert step(refused, READY) is None
    assert not is_unseen_for_long(refused, LATER, PACE)
    assert not is_unseen_for_long(first.model_copy(update={"commit": OTHER}), LATER, PACE)


@pytest.mark.parametrize("known", [{}, {"changed_at": NOW}])
def test_denied_polls_end(known: dict[str, Any]) -> None:
    """Every hour until the documented age."""
    record, now, polls = branch(pull(**known)), NOW, 0
    while now is not None and polls < 1000:
        record, polls = decisions.not_polled(record, "denied", "denied", now, PACE), polls + 1
        assert record.pull is not None
        now = record.pull.poll_at  # type: ignore[assignment]  # None ends it
    assert polls == PACE.age / timedelta(hours=1) + 1
    assert len(record.outbox) == 1


def test_pull_request_is_about_the_task_that_worked_last_when_it_was_opened() -> None:
    """As the documentation of `$title` states; later tasks do not change it."""
    several = branch(tasks=("task-1", "task-2"))
    assert About.of(several, None).task == "task-2"
    opened = opened_at(several, found(), COMMIT)
    assert opened.pull is not None
    named = opened.pull.changed(task="task-2", text="the second")
    later = branch(named, tasks=("task-1", "task-2", "task-3"))
    assert (About.of(later, None).task, About.of(later, None).text) == ("task-2", "the second")


def test_conflict_that_the_trial_merge_does_not_find_is_not_followed() -> None:
    """Neither an event nor a task; once the forge reports another one, it is explained again."""
    terms, shown = replace(READY, follow_up=True), {"mergeable": "no", "obstacle": "conflict"}
    record = decisions.conflicted(branch(pull(shown=shown)), COMMIT, [], NOW)
    assert (record.outbox, step(record, terms)) == ((), None)
    gone = decisions.polled(record, PullRequestStatus(found(), Mergeability(Verdict.YES)), NOW, PACE)
    assert gone.pull is not None
    assert step(branch(gone.pull.showing(**shown)), terms) is Step.EXPLAIN


def test_follow_up_leaves_out_what_is_not_committed_as_the_last_task_did() -> None:
    """And merges only a base that its sandbox has."""
    repository = Repository(url="https://r/a/b", commit_rest=False)
    last = TaskSpec(text="x", harness=CommandHarness(argv=["true"]), repository=repository)
    after = follow_up_spec(branch(pull(conflicts=("a",))), last)
    assert after.repository is not None
    assert not after.repository.commit_rest
    moved = branch(pull(shown={"base": "develop"}, conflicts=("a",)))
    assert "develop" in (follow_up_problem(moved, None) or "")
