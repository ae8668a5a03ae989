"""What the replies of forges mean: whether to merge, wait or give up, by their states and texts."""

from typing import Any

import pytest

from spawner.forges.api import read_as
from spawner.forges.faults import ForgeError, ForgeFault
from spawner.forges.forge import (
    Checks,
    ChecksState,
    MergeResult,
    Obstacle,
    PullRequestDraft,
    PullRequestState,
    Reviews,
    ReviewsState,
    Verdict,
)
from spawner.forges.gitea_replies import GiteaBranch, gitea_mergeability
from spawner.forges.github_replies import (
    BranchRule,
    CheckRun,
    GraphReply,
    github_checks,
    github_mergeability,
    prevent_push,
    refusal_text,
    required_checks,
    review_rule,
)
from spawner.forges.gitlab_replies import (
    Approvals,
    GitlabProject,
    JobStatus,
    MergeRequest,
    early_request_outcome,
    gitlab_checks,
    gitlab_mergeability,
    gitlab_reviews,
    merge_outcome,
    refused_request,
    select_request,
)
from spawner.forges.merge_refusals import early_outcome, refused_merge
from spawner.forges.replies import (
    ForgeProject,
    ForgePull,
    Review,
    ReviewRule,
    checks_of,
    required_default_branch,
    reviews_of,
    select_pull,
    split_draft_prefix,
)

HEAD, OTHER = "a" * 40, "b" * 40
DRAFT = PullRequestDraft("feature/sum", "main", "Sum", "Adds up.", commit=HEAD)
NO_CHECKS, NO_REVIEWS = Checks(ChecksState.NONE), Reviews(ReviewsState.NONE)
WAITING, REFUSED, MERGED = MergeResult.WAITING, MergeResult.REFUSED, MergeResult.MERGED


def pull(**changes: Any) -> ForgePull:
    parts = {
        "number": 1, "state": "open", "mergeable": True, "mergeable_state": "clean",
        "head": {"ref": "feature/sum", "sha": HEAD, "repo": {"full_name": "team/shop"}},
        "base": {"ref": "main", "sha": OTHER, "repo": {"full_name": "team/shop"}},
    }  # fmt: skip
    return ForgePull.model_validate(parts | changes)


def request(**changes: Any) -> MergeRequest:
    parts = {
        "iid": 1, "state": "opened", "source_branch": "feature/sum", "target_branch": "main", "source_project_id": 5,
        "target_project_id": 5, "sha": HEAD, "detailed_merge_status": "mergeable",
    }  # fmt: skip
    return MergeRequest.model_validate(parts | changes)


@pytest.mark.parametrize(
    ("text", "result", "obstacle"),
    [
        ("Pull Request is not mergeable", WAITING, Obstacle.COMPUTING),
        ("Pull Request has merge conflicts", REFUSED, Obstacle.CONFLICT),
        ("Pull Request is still a draft", REFUSED, Obstacle.DRAFT),
        ("Base branch was modified. Review and try the merge again.", WAITING, Obstacle.COMPUTING),
        ("Head branch is out of date. Review and try the merge again.", WAITING, Obstacle.BEHIND),
        ("Head branch was modified. Review and try the merge again.", REFUSED, Obstacle.HEAD_MOVED),
        ('Required status check "ci" is expected.', WAITING, Obstacle.CHECKS),
        ("6 of 6 required status checks are expected.", WAITING, Obstacle.CHECKS),
        ("At least 1 approving review is required by reviewers with write access.", WAITING, Obstacle.REVIEWS),
        ("1 review requesting changes by reviewers with write access.", REFUSED, Obstacle.REVIEWS),
        ("Merge commits are not allowed on this repository.", REFUSED, Obstacle.METHOD),
        ("This branch can't be rebased", REFUSED, Obstacle.CONFLICT),
        ("The target branch does not have a merge queue", REFUSED, Obstacle.QUEUE),
        ("Changes must be made through the merge queue", WAITING, Obstacle.QUEUE),
        ("Repository rule violations found Changes must be made through the merge queue", WAITING, Obstacle.QUEUE),
        ("You're not authorized to push to this branch.", REFUSED, Obstacle.RULES),
        ("Commits must have verified signatures.", REFUSED, Obstacle.RULES),
        # Gitea's
        ("Please try again later", WAITING, Obstacle.COMPUTING),
        ("Work in progress PRs cannot be merged", REFUSED, Obstacle.DRAFT),
        ("User not allowed to merge PR", REFUSED, Obstacle.RULES),
        ("Not all required status checks successful", WAITING, Obstacle.CHECKS),
        ("Does not have enough approvals", WAITING, Obstacle.REVIEWS),
        ("There are requested changes", REFUSED, Obstacle.REVIEWS),
        ("The head branch is behind the base branch", WAITING, Obstacle.BEHIND),
        ("squash is not allowed an allowed merge style for this repository", REFUSED, Obstacle.METHOD),
        ("merge push out of date", WAITING, Obstacle.COMPUTING),
        ("head out of date", REFUSED, Obstacle.HEAD_MOVED),
        ("PushRejected with remote message: no", REFUSED, Obstacle.RULES),
        ("", WAITING, Obstacle.COMPUTING),
    ],
)
def test_text_of_a_refused_merge_decides(text: str, result: MergeResult, obstacle: Obstacle) -> None:
    """GitHub and Gitea send these texts with 405. A text without a reason means: wait."""
    outcome = refused_merge(ForgeError(ForgeFault.REFUSED, "", status=405, reason=text), pull(), HEAD)
    assert (outcome.result, outcome.obstacle, outcome.reason) == (result, obstacle, text)


@pytest.mark.parametrize(
    ("changes", "result", "obstacle"),
    [
        ({"merged": True, "state": "closed", "merge_commit_sha": OTHER}, MERGED, None),
        ({"state": "closed"}, REFUSED, Obstacle.CLOSED),
        ({"head": {"ref": "feature/sum", "sha": OTHER}}, REFUSED, Obstacle.HEAD_MOVED),
        ({"mergeable": False, "mergeable_state": "dirty"}, REFUSED, Obstacle.CONFLICT),
        ({"mergeable": None, "mergeable_state": "unknown"}, WAITING, Obstacle.COMPUTING),
        ({"mergeable_state": "blocked"}, WAITING, Obstacle.RULES),
        ({"draft": True}, REFUSED, Obstacle.DRAFT),
    ],
)
def test_state_decides_about_a_text_that_does_not(
    changes: dict[str, Any], result: MergeResult, obstacle: Obstacle | None
) -> None:
    """The state of the pull request after the refusal is used."""
    refused = ForgeError(ForgeFault.REFUSED, "", status=405, reason="Pull Request is not mergeable")
    outcome = refused_merge(refused, pull(**changes), HEAD)
    assert (outcome.result, outcome.obstacle) == (result, obstacle)
    assert outcome.commit == (OTHER if result is MERGED else None)


def test_conflict_of_gitea_without_a_text() -> None:
    """Gitea's response 409 has an object with the output of git instead of a message."""
    outcome = refused_merge(ForgeError(ForgeFault.CONFLICT, "", status=409), pull(), HEAD)
    assert (outcome.result, outcome.obstacle) == (REFUSED, Obstacle.CONFLICT)


def test_merge_is_tried_only_if_it_is_not_blind() -> None:
    """No merge is requested while mergeability is unknown, or at another commit."""
    assert early_outcome(pull(), HEAD) is None
    outcomes = [early_outcome(one, HEAD) for one in (pull(mergeable=None), pull(merged=True, merge_commit_sha=OTHER))]
    assert [outcome and outcome.result for outcome in outcomes] == [WAITING, MERGED]
    moved = early_outcome(pull(), OTHER)
    assert moved
    assert moved.obstacle is Obstacle.HEAD_MOVED


@pytest.mark.parametrize(
    ("changes", "verdict", "obstacle"),
    [
        ({}, Verdict.YES, None),
        ({"mergeable_state": "unstable"}, Verdict.YES, None),
        ({"mergeable": None}, Verdict.UNKNOWN, Obstacle.COMPUTING),
        ({"mergeable_state": "unknown"}, Verdict.UNKNOWN, Obstacle.COMPUTING),
        ({"mergeable_state": "something new"}, Verdict.UNKNOWN, Obstacle.COMPUTING),
        ({"mergeable": False, "mergeable_state": "dirty"}, Verdict.NO, Obstacle.CONFLICT),
        ({"mergeable_state": "behind"}, Verdict.NO, Obstacle.BEHIND),
        ({"mergeable_state": "draft"}, Verdict.NO, Obstacle.DRAFT),
        ({"mergeable_state": "blocked"}, Verdict.NO, Obstacle.RULES),
        ({"state": "closed"}, Verdict.NO, Obstacle.CLOSED),
    ],
)
def test_only_known_states_of_github_permit_a_merge(
    changes: dict[str, Any], verdict: Verdict, obstacle: Obstacle | None
) -> None:
    """Null, and states that GitHub may add later, mean: wait."""
    found = github_mergeability(pull(**changes), NO_CHECKS, NO_REVIEWS)
    assert (found.verdict, found.obstacle) == (verdict, obstacle)


def test_blocked_is_explained_by_reviews_or_checks() -> None:
    """Reviews have precedence."""
    blocked = pull(mergeable_state="blocked")
    pending, required = Checks(ChecksState.PENDING), Reviews(ReviewsState.REQUIRED)
    assert github_mergeability(blocked, pending, NO_REVIEWS).obstacle is Obstacle.CHECKS
    assert github_mergeability(blocked, pending, required).obstacle is Obstacle.REVIEWS


def test_pull_request_of_a_fork_is_another_one() -> None:
    """The fork's branch has the same name. The repository is null if the fork was deleted."""
    fork = pull(head={"ref": "feature/sum", "sha": HEAD, "repo": {"full_name": "evil/shop"}})
    deleted = pull(head={"ref": "feature/sum", "sha": HEAD, "repo": None})
    assert select_pull([fork, deleted], DRAFT, "team/shop") is None
    assert select_pull([fork, pull(number=2)], DRAFT, "Team/Shop") == pull(number=2)
    assert select_request([request(source_project_id=9), request(source_project_id=None)], DRAFT) is None
    assert select_request([request(source_project_id=9), request(iid=2)], DRAFT) == request(iid=2)


def test_open_pull_request_is_chosen_before_one_with_the_same_commit() -> None:
    """A merged or closed one is chosen only if it has the draft's commit."""
    old = pull(number=1, state="closed", head=pull().head.model_dump() | {"sha": OTHER})
    same, opened = pull(number=2, state="closed"), pull(number=3)
    assert select_pull([old], DRAFT, "team/shop") is None
    assert select_pull([old, same], DRAFT, "team/shop") == same
    assert select_pull([old, same, opened], DRAFT, "team/shop") == opened


def test_worst_result_of_a_name_counts() -> None:
    """Several check runs may have one name, and a required check may not have reported."""
    passed, failed, pending = ChecksState.PASSED, ChecksState.FAILED, ChecksState.PENDING
    found = checks_of([("a", passed), ("a", failed), ("b", passed), ("c", pending), ("b", passed)], ["b", "d"])
    assert (found.state, found.failed, found.pending, found.passed) == (failed, ("a",), ("c", "d"), ("b",))
    assert checks_of([]).state is ChecksState.NONE
    assert checks_of([], ["a"]).state is pending


@pytest.mark.parametrize(
    ("status", "conclusion", "state"),
    [
        ("completed", "success", ChecksState.PASSED), ("completed", "skipped", ChecksState.PASSED),
        ("completed", "failure", ChecksState.FAILED), ("completed", "action_required", ChecksState.FAILED),
        ("completed", "something new", ChecksState.FAILED), ("completed", None, ChecksState.FAILED),
        ("queued", None, ChecksState.PENDING), ("something new", None, ChecksState.PENDING),
    ],
)  # fmt: skip
def test_conclusion_of_a_check_run(status: str, conclusion: str | None, state: ChecksState) -> None:
    """Only the known successful conclusions count as success."""
    run = CheckRun(name="ci", status=status, conclusion=conclusion)
    assert github_checks([run], [], []).state is state


def test_rules_of_github() -> None:
    """The strictest of several rulesets counts. A rule for every branch, such as signatures, does not protect one."""
    rules = [
        BranchRule(type="pull_request", parameters={"required_approving_review_count": count}) for count in (1, 2, "x")
    ] + [BranchRule(type="required_status_checks", parameters={"required_status_checks": [{"context": "ci"}, {}, 5]})]
    assert (review_rule(rules).approvals, required_checks(rules)) == (2, ["ci"])
    assert prevent_push(rules)
    assert not prevent_push([BranchRule(type="required_signatures"), BranchRule(type="deletion")])


def review(login: str, state: str, commit: str = HEAD, **changes: Any) -> Review:
    return Review.model_validate({"user": {"login": login}, "state": state, "commit_id": commit} | changes)


@pytest.mark.parametrize(
    ("reviews", "state", "missing"),
    [
        ([], ReviewsState.REQUIRED, 1),
        ([review("ada", "APPROVED")], ReviewsState.APPROVED, 0),
        ([review("ada", "APPROVED"), review("ada", "COMMENTED")], ReviewsState.APPROVED, 0),
        ([review("ada", "APPROVED"), review("ada", "DISMISSED")], ReviewsState.REQUIRED, 1),
        ([review("ada", "APPROVED", OTHER)], ReviewsState.REQUIRED, 1),
        ([review("eve", "APPROVED", author_association="NONE")], ReviewsState.REQUIRED, 1),
        ([review("eve", "CHANGES_REQUESTED", author_association="CONTRIBUTOR")], ReviewsState.CHANGES_REQUESTED, 1),
        (
            [review("eve", "CHANGES_REQUESTED", author_association="NONE"), review("eve", "DISMISSED")],
            ReviewsState.REQUIRED,
            1,
        ),
        ([review("eve", "REQUEST_CHANGES", official=False)], ReviewsState.CHANGES_REQUESTED, 1),
        ([review("ada", "APPROVED"), review("bob", "REQUEST_CHANGES")], ReviewsState.CHANGES_REQUESTED, 0),
        ([review("bob", "REQUEST_CHANGES"), review("bob", "APPROVED")], ReviewsState.APPROVED, 0),
        ([review("ada", "APPROVED", stale=True)], ReviewsState.REQUIRED, 1),
        ([review("ada", "APPROVED", official=False)], ReviewsState.REQUIRED, 1),
        ([review("ada", "REQUEST_CHANGES", dismissed=True)], ReviewsState.REQUIRED, 1),
    ],
)
def test_last_decision_of_each_reviewer_counts(reviews: list[Review], state: ReviewsState, missing: int) -> None:
    """Approvals count for the head commit, from users with a role; requests for changes count from anyone."""
    found = reviews_of(reviews, HEAD, ReviewRule(1))
    assert (found.state, found.missing) == (state, missing)
    assert reviews_of([], HEAD, ReviewRule()).state is ReviewsState.NONE


@pytest.mark.parametrize(
    ("status", "verdict", "obstacle", "result"),
    [
        ("mergeable", Verdict.YES, None, WAITING),
        ("checking", Verdict.UNKNOWN, Obstacle.COMPUTING, WAITING),
        ("unchecked", Verdict.UNKNOWN, Obstacle.COMPUTING, WAITING),
        ("something new", Verdict.UNKNOWN, Obstacle.COMPUTING, WAITING),
        ("conflict", Verdict.NO, Obstacle.CONFLICT, REFUSED),
        ("need_rebase", Verdict.NO, Obstacle.BEHIND, WAITING),
        ("draft_status", Verdict.NO, Obstacle.DRAFT, REFUSED),
        ("ci_still_running", Verdict.NO, Obstacle.CHECKS, WAITING),
        ("not_approved", Verdict.NO, Obstacle.REVIEWS, WAITING),
        ("requested_changes", Verdict.NO, Obstacle.REVIEWS, REFUSED),
    ],
)
def test_status_of_gitlab_decides(
    status: str, verdict: Verdict, obstacle: Obstacle | None, result: MergeResult
) -> None:
    """GitLab's 405 and 422 have many causes. With an unknown status, no merge is sent: wait."""
    one = request(detailed_merge_status=status)
    found = gitlab_mergeability(one)
    assert (found.verdict, found.obstacle) == (verdict, obstacle)
    refused = refused_request(one, HEAD, "405", moved=False)
    assert (refused.result, refused.obstacle) == (result, obstacle or Obstacle.COMPUTING)
    assert bool(early_request_outcome(one, HEAD)) is (verdict is Verdict.UNKNOWN)


def test_merged_commit_of_gitlab() -> None:
    """A fast-forward has no merge commit. If the commit is merged, a refusal of this request does not count."""
    merged = request(state="merged", merge_commit_sha=None, squash_commit_sha=None)
    assert merged.merged_commit == HEAD
    assert refused_request(merged, HEAD, "405", moved=True).result is MERGED
    for outcome in (refused_request(merged, OTHER, "405", moved=False), merge_outcome(merged, OTHER, queue=False)):
        assert (outcome.result, outcome.obstacle) == (WAITING, Obstacle.HEAD_MOVED)
    assert refused_request(request(), OTHER, "409", moved=True).obstacle is Obstacle.HEAD_MOVED
    assert request(state="locked").pull_state is PullRequestState.OPEN
    assert request(merge_commit_sha=OTHER).merged_commit is None


def test_jobs_and_approvals_of_gitlab() -> None:
    """A failed job that may fail has passed. The free edition reports missing approvals by the status only."""
    jobs = [JobStatus(name="a", status="failed", allow_failure=True), JobStatus(name="b", status="success")]
    running = request(head_pipeline={"status": "running"})
    assert gitlab_checks(request(), jobs).state is ChecksState.PASSED
    assert gitlab_checks(running, jobs).pending == ("pipeline",)
    assert gitlab_checks(request(), []).state is ChecksState.NONE
    approved = Approvals.model_validate({"approvals_left": 0, "approved_by": [{"user": {"id": 1, "username": "ada"}}]})
    assert gitlab_reviews(request(), approved).state is ReviewsState.APPROVED
    assert gitlab_reviews(request(), Approvals(approvals_left=2)).missing == 2
    assert gitlab_reviews(request(detailed_merge_status="not_approved"), Approvals()).state is ReviewsState.REQUIRED


def test_mergeable_of_gitea_is_ambiguous() -> None:
    """It is also false while Gitea checks for conflicts. In older versions, the title shows a draft."""
    assert gitea_mergeability(pull(mergeable=False), NO_REVIEWS).verdict is Verdict.UNKNOWN
    assert gitea_mergeability(pull(), NO_REVIEWS).verdict is Verdict.YES
    assert gitea_mergeability(pull(title="WIP: Sum"), NO_REVIEWS).obstacle is Obstacle.DRAFT
    assert gitea_mergeability(pull(), Reviews(ReviewsState.REQUIRED)).obstacle is Obstacle.REVIEWS
    branch = GiteaBranch(enable_status_check=True, status_check_contexts=["ci", "lint/*"])
    assert branch.required_checks() == ["ci"]


@pytest.mark.parametrize("sha", ["--upload-pack=x", HEAD + "\n", HEAD.upper(), "a" * 41, "main"])
def test_commit_is_an_id_and_nothing_else(sha: str) -> None:
    """Git gets the commit as an argument."""
    with pytest.raises(ForgeError, match="pattern_mismatch"):
        read_as(ForgePull, {"number": 1, "state": "open", "head": {"ref": "a", "sha": sha}, "base": {"ref": "b"}}, "x")
    with pytest.raises(ForgeError, match="pattern_mismatch"):
        read_as(MergeRequest, request().model_dump() | {"merge_commit_sha": sha}, "x")


@pytest.mark.parametrize(
    "name",
    ["-rf", "a..b", "a b", "a\x00", "a\n", "a~1", "a^", "a:b", "a?", "a*", "a[", "a\\", "@{u}", "@", "/a", "a/", "a//b",
     ".a", "a/.b", "a.", "a.lock", "a.lock/b", "x" * 300],
)  # fmt: skip
def test_default_branch_is_a_valid_name(name: str) -> None:
    """A name that git refuses is an error. A missing default branch is another fault."""
    for model in (ForgeProject, GitlabProject):
        with pytest.raises(ForgeError, match="value_error"):
            read_as(model, {"default_branch": name}, "x")
    assert read_as(ForgeProject, {"default_branch": "release/v1.2-@x"}, "x").default_branch == "release/v1.2-@x"
    with pytest.raises(ForgeError, match="no default branch"):
        required_default_branch(read_as(GitlabProject, {"default_branch": None}, "x").default_branch)


@pytest.mark.parametrize("mark", ["Draft: ", "draft:", "[Draft] ", "(draft) ", "WIP: ", "[wip] Draft: ", ""])
def test_mark_of_a_draft_is_separated_from_its_title(mark: str) -> None:
    """The prefixes that users write are recognized too. Other words of a title are not a mark."""
    assert split_draft_prefix(f"{mark}Draft the sums") == (mark, "Draft the sums")


@pytest.mark.parametrize(
    ("kind", "text", "passes"),
    [
        ("RATE_LIMITED", "API rate limit exceeded for installation ID 1.", True), ("SERVICE_UNAVAILABLE", "", True),
        ("", "Something went wrong while executing your query.", True), ("FORBIDDEN", "not accessible", False),
        ("UNPROCESSABLE", "not a draft; try again", False), ("", "unknown", False),
    ],
)  # fmt: skip
def test_error_of_graphql_that_passes_is_no_refusal(kind: str, text: str, passes: bool) -> None:  # a column
    """The type of the error decides, as GitHub sends status 200 with it. A rate limit has a delay."""
    reply = GraphReply.model_validate({"errors": [{"type": kind, "message": text}]})
    if not passes:
        assert refusal_text(reply) == text
        return
    with pytest.raises(ForgeError) as failed:
        refusal_text(reply)
    assert not failed.value.permanent
    assert (failed.value.retry_after is not None) == (kind == "RATE_LIMITED")
