"""What becomes of a pull request that is changed at its forge, or that its forge refuses."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sandherd.contracts.commands import CommandHarness, TaskSpec
from sandherd.contracts.repositories import Repository
from sandherd.contracts.states import BranchState
from spawner.forges.forge import (
    Mergeability,
    MergeResult,
    PullRequest,
    PullRequestState,
    PullRequestStatus,
    Verdict,
)
from spawner.forges.merge_refusals import early_outcome
from spawner.forges.replies import ForgePull
from spawner.pull_requests import pull_request_requests, pull_request_transitions
from spawner.pull_requests.conflict_task import follow_up_problem, follow_up_spec
from spawner.pull_requests.pull_request_facts import PullRequestTask
from spawner.pull_requests.pull_request_steps import PullRequestStep, target_of
from spawner.pull_requests.step_schedule import due_at
from spawner.pull_requests.unseen_branches import is_unseen_for_long, mark_unseen
from spawner.repositories.branch_record import BranchRecord
from spawner.repositories.pull_request_record import PullRequestRecord
from tests.unit.spawner.test_spawner_pull_request_steps import (
    ACTIVE,
    BEFORE,
    COMMIT,
    LATER,
    MERGED,
    NOW,
    OTHER,
    PACE,
    READY,
    branch,
    pull,
    resting,
    step,
)


def found(**changes: Any) -> PullRequest:
    """The pull request as its forge has it."""
    known = PullRequest(1, "https://r/a/b/pull/1", PullRequestState.OPEN, "feature/x", "main", COMMIT)
    return replace(known, **changes)


def opened_at(record: BranchRecord, one: PullRequest, commit: str = OTHER) -> BranchRecord:
    return pull_request_transitions.opened(
        record, one, commit, NOW, ready=True, task_fields={"task": "task-1", "text": ""}, pace=PACE, worked_on=resting
    )


def test_known_pull_request_that_was_closed_meanwhile_is_not_followed_by_another_one() -> None:
    """A user closed it before the next poll, while new commits were pushed: it never had these commits."""
    known = branch(pull(), commit=OTHER, pushed=OTHER)
    closed = opened_at(known, found(state=PullRequestState.CLOSED))
    assert closed.pull is not None
    assert (closed.pull.shown.state, closed.pull.written, len(closed.outbox)) == ("closed", COMMIT, 1)  # type: ignore[union-attr]
    assert step(closed, READY) is None
    assert step(opened_at(known, found(state=PullRequestState.MERGED)), READY) is PullRequestStep.OPEN


def test_another_base_at_the_forge_is_shown() -> None:
    """A user chose it, so trial merges use the present base."""
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
    """The cause is another commit of a task or a user, or another merge. A forge may see a push late."""
    found = pull_request_requests.merge_obstacle(record, PACE)
    assert (found[0].value if found else None) == code
    if found is None or record.pull is None:
        return
    assert due_at(record, MERGED, ACTIVE, NOW, PACE) == NOW
    wanted = record.pull.merge_wanted or ""
    done = pull_request_requests.merge_withdrawn(record, wanted=wanted, obstacle=found[0], reason=found[1], now=NOW)
    assert not done.view().pull_request_waits
    assert (done.view().pull_request_problem, "branch.pull_request_refused" in done.outbox[0]) == (found[1], True)
    assert pull_request_requests.merge_obstacle(done, PACE) is None


def test_merge_or_close_at_the_forge_without_the_wanted_commit_is_published() -> None:
    """This is about a merge that a user wants here. A merge with the commit is a success."""
    for state in (PullRequestState.MERGED, PullRequestState.CLOSED):
        status = PullRequestStatus(found(state=state, head_commit=OTHER), Mergeability(Verdict.NO))
        record = pull_request_transitions.polled(
            branch(pull(merge_wanted=COMMIT)), status, NOW, PACE, worked_on=resting
        )
        assert record.state is BranchState.LIVE
        assert (len(record.outbox), "branch.pull_request_refused" in record.outbox[1]) == (2, True)
        assert not record.view().pull_request_waits


def test_merge_that_found_other_commits_merged_is_left_to_the_next_poll() -> None:
    """The mirror then shows whether the branch's commit is among them."""
    merged = ForgePull.model_validate(
        {"number": 1, "state": "closed", "merged": True, "head": {"ref": "x", "sha": OTHER}, "base": {"ref": "main"}}
    )
    outcome = early_outcome(merged, COMMIT)
    assert outcome is not None
    assert outcome.result is MergeResult.WAITING


def test_branch_that_its_forge_never_sees_is_refused_in_the_end() -> None:
    """It may have been deleted at the forge. For another commit, the time starts again."""
    first = mark_unseen(branch(), COMMIT, NOW)
    assert mark_unseen(first, COMMIT, LATER) == first
    assert not is_unseen_for_long(first, NOW, PACE)
    assert is_unseen_for_long(first, LATER, PACE)
    refused = pull_request_transitions.refused(
        first, PullRequestStep.OPEN, COMMIT, reason="r", code="not_found", now=LATER
    )
    assert step(refused, READY) is None
    assert not is_unseen_for_long(refused, LATER, PACE)
    assert not is_unseen_for_long(first.model_copy(update={"commit": OTHER}), LATER, PACE)


@pytest.mark.parametrize("known", [{}, {"changed_at": NOW}])
def test_denied_polls_end(known: dict[str, Any]) -> None:
    """They are repeated every hour until the documented age."""
    record, now, polls = branch(pull(**known)), NOW, 0
    while now is not None and polls < 1000:
        record, polls = pull_request_transitions.not_polled(record, "denied", "denied", now, PACE), polls + 1
        assert record.pull is not None
        now = record.pull.poll_at  # type: ignore[assignment]  # None ends it
    assert polls == PACE.age / timedelta(hours=1) + 1
    assert len(record.outbox) == 1


def test_pull_request_is_about_the_task_that_worked_last_when_it_was_opened() -> None:
    """The documentation of `$title` states this. Later tasks do not change it."""
    several = branch(tasks=("task-1", "task-2"))
    assert PullRequestTask.of(several, {}).task == "task-2"
    opened = opened_at(several, found(), COMMIT)
    assert opened.pull is not None
    named = opened.pull.changed(task="task-2", text="the second")
    later = branch(named, tasks=("task-1", "task-2", "task-3"))
    assert (PullRequestTask.of(later, {}).task, PullRequestTask.of(later, {}).text) == ("task-2", "the second")


def test_conflict_that_the_trial_merge_does_not_find_is_not_followed() -> None:
    """There is no event and no task. If the forge reports another conflict, it is explained again."""
    terms, shown = replace(READY, follow_up=True), {"mergeable": "no", "obstacle": "conflict"}
    record = pull_request_transitions.conflicted(branch(pull(shown=shown)), COMMIT, [], NOW)
    assert (record.outbox, step(record, terms)) == ((), None)
    gone = pull_request_transitions.polled(
        record, PullRequestStatus(found(), Mergeability(Verdict.YES)), NOW, PACE, worked_on=resting
    )
    assert gone.pull is not None
    assert step(branch(gone.pull.showing(**shown)), terms) is PullRequestStep.FIND_CONFLICT


def test_follow_up_checks_out_and_commits_as_the_last_task_did() -> None:
    """It merges only a base that its sandbox has."""
    repository = Repository(url="https://r/a/b", commit_rest=False, submodules="recursive", lfs=True)
    last = TaskSpec(text="x", harness=CommandHarness(argv=["true"]), repository=repository)
    after = follow_up_spec(branch(pull(conflicts=("a",))), last)
    assert after.repository is not None
    found = (after.repository.commit_rest, after.repository.submodules, after.repository.lfs)
    assert found == (False, "recursive", True)
    moved = branch(pull(shown={"base": "develop"}, conflicts=("a",)))
    assert "develop" in (follow_up_problem(moved, None) or "")
