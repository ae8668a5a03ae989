"""GitHub's replies, and their conversion to the types of `Forge`. Pure."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pydantic import AliasChoices, BaseModel, Field

from spawner.forges.faults import ForgeError, ForgeFault
from spawner.forges.forge import (
    Checks,
    ChecksState,
    Mergeability,
    Obstacle,
    PullRequestState,
    Reviews,
    Verdict,
)
from spawner.forges.plain_text import plain
from spawner.forges.replies import Commit, ForgePull, Name, ReviewRule, Text, checks_of, obstacle_of

_PASSED_CONCLUSIONS: Final = frozenset({"success", "neutral", "skipped"})
_LIMIT_TYPES: Final = frozenset({"RATE_LIMITED", "RATE_LIMIT", "RESOURCE_LIMITS_EXCEEDED"})
_LIMIT_SECONDS: Final = 60.0
_TRANSIENT_TYPES: Final = frozenset({"INTERNAL", "INTERNAL_ERROR", "SERVICE_UNAVAILABLE", "TIMEOUT", "LOADING"})
_TRANSIENT_TEXTS: Final = re.compile(r"something went wrong|rate limit|timed? ?out|try again", re.IGNORECASE)
"""Texts of transient errors that have no type, for example if a request took too long."""
_PROTECTING_RULES: Final = frozenset({"update", "pull_request", "merge_queue", "required_status_checks"})
"""Types of rules that prevent a push to a branch. Others, such as required signatures, may apply to every branch."""


ENQUEUE: Final = (
    "mutation($id: ID!, $head: GitObjectID!) { enqueuePullRequest(input: {pullRequestId: $id, expectedHeadOid: $head}) "
    "{ mergeQueueEntry { id } } }"
)
MARK_READY: Final = (
    "mutation($id: ID!) { markPullRequestReadyForReview(input: {pullRequestId: $id}) { pullRequest { isDraft } } }"
)


class CheckRun(BaseModel):
    """A check of a GitHub App, such as Actions."""

    name: Name
    status: str
    conclusion: str | None = None

    @property
    def state(self) -> ChecksState:
        """The result. A check that waits for a user (`action_required`) has failed: it can't pass by itself."""
        if self.status != "completed":
            return ChecksState.PENDING
        return ChecksState.PASSED if self.conclusion in _PASSED_CONCLUSIONS else ChecksState.FAILED


class CommitStatus(BaseModel):
    """A commit status that a program set. Its context is its name."""

    context: Name
    state: str = Field(validation_alias=AliasChoices("state", "status"))  # GitHub's and Gitea's name

    @property
    def result(self) -> ChecksState:
        """The result, also for Gitea's states."""
        if self.state in {"success", "skipped", "warning"}:
            return ChecksState.PASSED
        return ChecksState.PENDING if self.state == "pending" else ChecksState.FAILED


class CombinedStatus(BaseModel):
    """The last status of each context. The combined state is not used, as it is `pending` even without a status."""

    statuses: list[CommitStatus] | None = None
    total_count: int = 0


class BranchRule(BaseModel):
    """A rule of a ruleset that applies to a branch."""

    type: str
    parameters: dict[str, Any] | None = None


class GithubBranch(BaseModel):
    """A branch. `protected`: a branch protection rule, the older kind of rules, applies to it."""

    protected: bool = False


class IssueReply(BaseModel):
    """An issue. GitHub and Gitea also list pull requests as issues, with the field `pull_request`."""

    number: int
    pull_request: Any = None


class MergeReply(BaseModel):
    """The result of a merge."""

    merged: bool = False
    sha: Commit = ""


class GraphError(BaseModel):
    """An error of a GraphQL request."""

    message: Text = ""
    type: Text = ""


class GraphReply(BaseModel):
    """The result of a GraphQL request. Its HTTP status is 200 even if it failed."""

    data: Any = None
    errors: list[GraphError] | None = None


def prevent_push(rules: Iterable[BranchRule]) -> bool:
    """Whether the rules prevent a push to their branch."""
    return any(rule.type in _PROTECTING_RULES for rule in rules)


def required_checks(rules: Iterable[BranchRule]) -> list[str]:
    """The names of the checks that the rules require."""
    lists = (rule.parameters for rule in rules if rule.type == "required_status_checks" and rule.parameters)
    checks = (check for parameters in lists for check in parameters.get("required_status_checks") or [])
    return [str(check["context"]) for check in checks if isinstance(check, dict) and check.get("context")]


def review_rule(rules: Iterable[BranchRule]) -> ReviewRule:
    """The number of approvals that the rules require: the largest number of all rules."""
    lists = (rule.parameters for rule in rules if rule.type == "pull_request" and rule.parameters)
    counts = (parameters.get("required_approving_review_count") for parameters in lists)
    return ReviewRule(max([0, *(count for count in counts if isinstance(count, int))]))


def github_checks(runs: Sequence[CheckRun], statuses: Sequence[CommitStatus], required: Iterable[str]) -> Checks:
    """The checks, from both of GitHub's lists: check runs and commit statuses."""
    results = [*((run.name, run.state) for run in runs), *((status.context, status.result) for status in statuses)]
    return checks_of(results, required)


_VERDICTS: Final = {
    "dirty": (Verdict.NO, Obstacle.CONFLICT),
    "behind": (Verdict.NO, Obstacle.BEHIND),
    "draft": (Verdict.NO, Obstacle.DRAFT),
    "clean": (Verdict.YES, None),
    "has_hooks": (Verdict.YES, None),
    "unstable": (Verdict.YES, None),  # a check that is not required has failed; it is in `Checks`
}
"""The verdict and the obstacle by `mergeable_state`. With any other state, GitHub has not decided."""


def github_mergeability(pull: ForgePull, checks: Checks, reviews: Reviews) -> Mergeability:
    """Whether GitHub would merge it. Unknown if `mergeable` is null, or the state is not known here."""
    state = plain(pull.mergeable_state, 40)
    if pull.pull_state is not PullRequestState.OPEN:
        return Mergeability(Verdict.NO, Obstacle.CLOSED, pull.pull_state.value)
    if pull.mergeable is None:
        return Mergeability(Verdict.UNKNOWN, Obstacle.COMPUTING, state)
    if pull.mergeable is False:
        return Mergeability(Verdict.NO, Obstacle.CONFLICT, state)
    if pull.draft:
        return Mergeability(Verdict.NO, Obstacle.DRAFT, state)
    if state == "blocked":
        return Mergeability(Verdict.NO, obstacle_of(reviews, checks), state)
    verdict, obstacle = _VERDICTS.get(state, (Verdict.UNKNOWN, Obstacle.COMPUTING))
    return Mergeability(verdict, obstacle, state)


def error_text(reply: GraphReply) -> str:
    """The text of a GraphQL request's errors; empty if it succeeded."""
    return plain("; ".join(error.message or error.type or "error" for error in (reply.errors or [])[:5]), 300)


def refusal_text(reply: GraphReply) -> str:
    """Why a GraphQL request was refused; empty if it succeeded. Raises `ForgeError` if it may succeed later."""
    reason = error_text(reply)
    for error in reply.errors or []:
        if error.type in _LIMIT_TYPES:
            raise ForgeError(ForgeFault.UNAVAILABLE, "graphql", reason=reason, retry_after=_LIMIT_SECONDS)
        if error.type in _TRANSIENT_TYPES or (not error.type and _TRANSIENT_TEXTS.search(error.message)):
            raise ForgeError(ForgeFault.UNAVAILABLE, "graphql", reason=reason)
    return reason


def graphql_url(api_url: str) -> str:
    """The URL of GraphQL: `/graphql` below the API's URL, or beside `/v3` for GitHub Enterprise Server."""
    return f"{api_url.removesuffix('/v3')}/graphql"
