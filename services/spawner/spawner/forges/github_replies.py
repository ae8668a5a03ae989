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

_PASSED: Final = frozenset({"success", "neutral", "skipped"})
_LIMITED: Final = frozenset({"RATE_LIMITED", "RATE_LIMIT", "RESOURCE_LIMITS_EXCEEDED"})
_LIMITED_SECONDS: Final = 60.0
_FAILED: Final = frozenset({"INTERNAL", "INTERNAL_ERROR", "SERVICE_UNAVAILABLE", "TIMEOUT", "LOADING"})
_PASSING: Final = re.compile(r"something went wrong|rate limit|timed? ?out|try again", re.IGNORECASE)
"""Texts of transient errors that have no type, such as that of a request that took too long."""
_PROTECTING: Final = frozenset({"update", "pull_request", "merge_queue", "required_status_checks"})
"""Rules that prevent a push to a branch. Others, such as required signatures, may apply to every branch."""


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
        """The result. A check that waits for a user (`action_required`) has failed: it does not pass by itself."""
        if self.status != "completed":
            return ChecksState.PENDING
        return ChecksState.PASSED if self.conclusion in _PASSED else ChecksState.FAILED


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
    """The last status of each context. The combined state is not used: it is also `pending` if there is no status."""

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
    """The result of a GraphQL request, which has the status 200 also if it failed."""

    data: Any = None
    errors: list[GraphError] | None = None


def protects(rules: Iterable[BranchRule]) -> bool:
    """Whether the rules prevent a push to their branch."""
    return any(rule.type in _PROTECTING for rule in rules)


def required_checks(rules: Iterable[BranchRule]) -> list[str]:
    """The names of the checks that the rules require."""
    lists = (rule.parameters for rule in rules if rule.type == "required_status_checks" and rule.parameters)
    checks = (check for parameters in lists for check in parameters.get("required_status_checks") or [])
    return [str(check["context"]) for check in checks if isinstance(check, dict) and check.get("context")]


def review_rule(rules: Iterable[BranchRule]) -> ReviewRule:
    """The approvals that the rules require: the largest number of all rules."""
    found = (rule.parameters for rule in rules if rule.type == "pull_request" and rule.parameters)
    counts = (parameters.get("required_approving_review_count") for parameters in found)
    return ReviewRule(max([0, *(count for count in counts if isinstance(count, int))]))


def github_checks(runs: Sequence[CheckRun], commit: Sequence[CommitStatus], required: Iterable[str]) -> Checks:
    """The checks, from both of GitHub's lists: check runs and commit statuses."""
    statuses = [(status.context, status.result) for status in commit]
    return checks_of([*((run.name, run.state) for run in runs), *statuses], required)


_STATES: Final = {
    "dirty": (Verdict.NO, Obstacle.CONFLICT),
    "behind": (Verdict.NO, Obstacle.BEHIND),
    "draft": (Verdict.NO, Obstacle.DRAFT),
    "clean": (Verdict.YES, None),
    "has_hooks": (Verdict.YES, None),
    "unstable": (Verdict.YES, None),  # a check that is not required has failed: `Checks` has it
}


def github_mergeability(pull: ForgePull, checks: Checks, reviews: Reviews) -> Mergeability:
    """Whether GitHub would merge it. Unknown if `mergeable` is null, or the state is not known here."""
    state = plain(pull.mergeable_state, 40)
    if pull.current is not PullRequestState.OPEN:
        return Mergeability(Verdict.NO, Obstacle.CLOSED, pull.current.value)
    if pull.mergeable is None:
        return Mergeability(Verdict.UNKNOWN, Obstacle.COMPUTING, state)
    if pull.mergeable is False:
        return Mergeability(Verdict.NO, Obstacle.CONFLICT, state)
    if pull.draft:
        return Mergeability(Verdict.NO, Obstacle.DRAFT, state)
    if state == "blocked":
        return Mergeability(Verdict.NO, obstacle_of(reviews, checks), state)
    verdict, obstacle = _STATES.get(state, (Verdict.UNKNOWN, Obstacle.COMPUTING))
    return Mergeability(verdict, obstacle, state)


def graph_error(reply: GraphReply) -> str:
    """The text of a GraphQL request's errors; empty if it succeeded."""
    return plain("; ".join(error.message or error.type or "error" for error in (reply.errors or [])[:5]), 300)


def refused_text(reply: GraphReply) -> str:
    """Why a GraphQL request was refused; empty if it succeeded. Raises `ForgeError` if it may succeed later."""
    reason = graph_error(reply)
    for error in reply.errors or []:
        if error.type in _LIMITED:
            raise ForgeError(ForgeFault.UNAVAILABLE, "graphql", reason=reason, retry_after=_LIMITED_SECONDS)
        if error.type in _FAILED or (not error.type and _PASSING.search(error.message)):
            raise ForgeError(ForgeFault.UNAVAILABLE, "graphql", reason=reason)
    return reason


def graphql_url(api_url: str) -> str:
    """The URL of GraphQL: below the API's URL, or beside `/api/v3` on GitHub Enterprise Server."""
    return f"{api_url.removesuffix('/v3')}/graphql"
