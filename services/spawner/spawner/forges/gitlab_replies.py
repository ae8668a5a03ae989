"""GitLab's replies, and their conversion to the types of `Forge`. Pure."""

from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel

from spawner.forges.forge import (
    Checks,
    ChecksState,
    Mergeability,
    MergeOutcome,
    MergeResult,
    Obstacle,
    PullRequestDraft,
    PullRequestState,
    Reviews,
    ReviewsState,
    Verdict,
)
from spawner.forges.plain_text import plain
from spawner.forges.replies import Branch, Commit, Name, Number, Text, checks_of

DRAFT_PREFIX: Final = "Draft: "
_OBSTACLES: Final = {
    "mergeable": None,
    "conflict": Obstacle.CONFLICT,
    "broken_status": Obstacle.CONFLICT,
    "need_rebase": Obstacle.BEHIND,
    "draft_status": Obstacle.DRAFT,
    "not_open": Obstacle.CLOSED,
    "ci_must_pass": Obstacle.CHECKS,
    "ci_still_running": Obstacle.CHECKS,
    "external_status_checks": Obstacle.CHECKS,
    "status_checks_must_pass": Obstacle.CHECKS,
    "not_approved": Obstacle.REVIEWS,
    "requested_changes": Obstacle.REVIEWS,
    "discussions_not_resolved": Obstacle.REVIEWS,
    "blocked_status": Obstacle.RULES,
    "merge_request_blocked": Obstacle.RULES,
    "commits_status": Obstacle.RULES,
    "jira_association_missing": Obstacle.RULES,
    "locked_lfs_files": Obstacle.RULES,
    "locked_paths": Obstacle.RULES,
    "merge_time": Obstacle.RULES,
    "policies_denied": Obstacle.RULES,
    "security_policy_violations": Obstacle.RULES,
    "title_regex": Obstacle.RULES,
}
"""The obstacle to a merge by `detailed_merge_status`. With any other status (`checking`, `unchecked`, `preparing`, …),
GitLab has not decided yet."""
_LASTING_STATUSES: Final = frozenset({"conflict", "broken_status", "draft_status", "not_open", "requested_changes"})
"""Statuses that do not change without an agent or a user. With the others, the same merge may succeed later."""
_PASSED_STATUSES: Final = frozenset({"success", "skipped"})
_FAILED_STATUSES: Final = frozenset({"failed", "canceled", "canceling"})


class GitlabUser(BaseModel):
    """A user."""

    id: int = 0
    username: Name


class Pipeline(BaseModel):
    """The pipeline of a merge request's head."""

    status: str


class MergeRequest(BaseModel):
    """A merge request. In lists of merge requests, GitLab omits `head_pipeline`."""

    iid: Number
    state: str
    title: Text = ""
    description: Text = ""
    draft: bool = False
    source_branch: str
    target_branch: str
    source_project_id: int | None = None
    target_project_id: int | None = None
    sha: Commit = ""
    merge_commit_sha: Commit = ""
    squash_commit_sha: Commit = ""
    detailed_merge_status: str = "unchecked"
    merge_when_pipeline_succeeds: bool = False
    head_pipeline: Pipeline | None = None
    labels: list[str] = []
    reviewers: list[GitlabUser] | None = None

    @property
    def pull_state(self) -> PullRequestState:
        """The state. GitLab's state `locked` means that a merge is in progress."""
        if self.state == "merged":
            return PullRequestState.MERGED
        return PullRequestState.OPEN if self.state in {"opened", "locked"} else PullRequestState.CLOSED

    @property
    def merged_commit(self) -> str | None:
        """The resulting commit in the target branch, if merged. After a fast-forward it is the head commit."""
        if self.pull_state is not PullRequestState.MERGED:
            return None
        return self.merge_commit_sha or self.squash_commit_sha or self.sha or None

    def is_for(self, draft: PullRequestDraft) -> bool:
        """Whether it has the draft's head and base. A branch of the same name in a fork is another head."""
        is_own_branch = self.source_project_id == self.target_project_id
        return is_own_branch and (self.source_branch, self.target_branch) == (draft.head, draft.base)


class Approvals(BaseModel):
    """The approvals of a merge request. `approvals_left` is missing in GitLab's free edition."""

    class Approval(BaseModel):
        """An approval by one user."""

        user: GitlabUser | None = None

    approvals_left: int | None = None
    approved_by: list[Approval] = []


class JobStatus(BaseModel):
    """A job of a pipeline, or a status that another program set."""

    name: Name
    status: str
    allow_failure: bool = False

    @property
    def result(self) -> ChecksState:
        """The result. A job that may fail counts as passed if it has failed, or if it waits for a manual start."""
        if self.status in _PASSED_STATUSES or (self.allow_failure and self.status in _FAILED_STATUSES | {"manual"}):
            return ChecksState.PASSED
        return ChecksState.FAILED if self.status in _FAILED_STATUSES else ChecksState.PENDING


class GitlabProject(BaseModel):
    """A project."""

    default_branch: Branch = ""
    merge_method: str = "merge"


class GitlabBranch(BaseModel):
    """A branch, or a rule for protected branches. The name of a rule may contain wildcards."""

    name: str
    protected: bool = False


class GitlabIssue(BaseModel):
    """An issue."""

    iid: int
    moved_to_id: Any = None


def select_request(requests: Sequence[MergeRequest], draft: PullRequestDraft) -> MergeRequest | None:
    """The open merge request of a draft, else the one that was merged or closed with the draft's commit, or None."""
    of_draft = [request for request in requests if request.is_for(draft)]
    open_requests = (request for request in of_draft if request.pull_state is PullRequestState.OPEN)
    at_commit = (request for request in of_draft if draft.commit and request.sha == draft.commit)
    return next(open_requests, None) or next(at_commit, None)


def gitlab_checks(request: MergeRequest, jobs: Sequence[JobStatus]) -> Checks:
    """The checks: each job by its name, and the pipeline as a whole under the name `pipeline`."""
    results = [(job.name, job.result) for job in jobs]
    if request.head_pipeline is not None:
        results.append(("pipeline", JobStatus(name="pipeline", status=request.head_pipeline.status).result))
    return checks_of(results)


def gitlab_reviews(request: MergeRequest, approvals: Approvals) -> Reviews:
    """The reviews. A setting of the project decides whether an approval is still valid after a push."""
    approved = tuple(sorted({one.user.username for one in approvals.approved_by if one.user is not None}))
    missing = max(approvals.approvals_left or 0, int(request.detailed_merge_status == "not_approved"))
    if request.detailed_merge_status == "requested_changes":
        state = ReviewsState.CHANGES_REQUESTED
    elif missing:
        state = ReviewsState.REQUIRED
    else:
        state = ReviewsState.APPROVED if approved else ReviewsState.NONE
    return Reviews(state, approved, missing)


def gitlab_mergeability(request: MergeRequest) -> Mergeability:
    """Whether GitLab would merge it. With a status that is not known here, GitLab has not decided yet."""
    status = plain(request.detailed_merge_status, 60)
    if request.pull_state is not PullRequestState.OPEN:
        return Mergeability(Verdict.NO, Obstacle.CLOSED, request.pull_state.value)
    if status not in _OBSTACLES:
        return Mergeability(Verdict.UNKNOWN, Obstacle.COMPUTING, status)
    obstacle = _OBSTACLES[status]
    return Mergeability(Verdict.YES if obstacle is None else Verdict.NO, obstacle, status)


def merge_outcome(request: MergeRequest, commit: str, *, queue: bool) -> MergeOutcome:
    """The outcome of a merge of `commit` that GitLab accepted."""
    if request.pull_state is PullRequestState.MERGED:
        return _merged(request, commit)
    if queue or request.merge_when_pipeline_succeeds:
        return MergeOutcome(MergeResult.QUEUED)
    return MergeOutcome(MergeResult.WAITING, obstacle=Obstacle.COMPUTING, reason=plain(request.state, 40))


def _merged(request: MergeRequest, commit: str) -> MergeOutcome:
    """The outcome of a merge request that was merged. If other commits were merged, the next poll reads them."""
    if request.sha not in {"", commit}:
        return MergeOutcome(MergeResult.WAITING, obstacle=Obstacle.HEAD_MOVED, reason="merged with other commits")
    return MergeOutcome(MergeResult.MERGED, commit=request.merged_commit)


def early_request_outcome(request: MergeRequest, commit: str) -> MergeOutcome | None:
    """The outcome of a merge that must not be requested; None if it can be requested.

    No merge is requested at another commit, or before GitLab has decided whether it is possible.
    """
    if request.pull_state is not PullRequestState.OPEN or request.sha != commit:
        return refused_request(request, commit, "not open at this commit", moved=False)
    if request.detailed_merge_status not in _OBSTACLES:
        reason = plain(request.detailed_merge_status, 60)
        return MergeOutcome(MergeResult.WAITING, obstacle=Obstacle.COMPUTING, reason=reason)
    return None


def refused_request(request: MergeRequest, commit: str, reason: str, *, moved: bool) -> MergeOutcome:
    """The outcome of a merge of `commit` that GitLab refused. It depends on the current state of the merge request.

    `moved`: whether GitLab refused the merge because the branch is not at `commit`.
    """
    if request.pull_state is PullRequestState.MERGED:
        return _merged(request, commit)
    if request.pull_state is PullRequestState.CLOSED:
        return MergeOutcome(MergeResult.REFUSED, obstacle=Obstacle.CLOSED, reason=reason)
    if moved or request.sha != commit:
        return MergeOutcome(MergeResult.REFUSED, obstacle=Obstacle.HEAD_MOVED, reason=reason)
    obstacle = _OBSTACLES.get(request.detailed_merge_status) or Obstacle.COMPUTING
    result = MergeResult.REFUSED if request.detailed_merge_status in _LASTING_STATUSES else MergeResult.WAITING
    return MergeOutcome(result, obstacle=obstacle, reason=reason)
