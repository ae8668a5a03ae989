"""Gitea's replies, where they differ from GitHub's. Pure."""

from typing import Final

from pydantic import BaseModel

from spawner.forges.forge import Mergeability, Obstacle, PullRequestState, Reviews, ReviewsState, Verdict
from spawner.forges.replies import ForgePull, split_draft_prefix

WIP_PREFIX: Final = "WIP: "
"""The prefix of a title that makes a pull request a draft."""


class GiteaBranch(BaseModel):
    """A branch with the rules that apply to it."""

    protected: bool = False
    required_approvals: int = 0
    enable_status_check: bool = False
    status_check_contexts: list[str] | None = None

    def required_checks(self) -> list[str]:
        """The names of the required checks, without patterns, which only the forge evaluates."""
        return [name for name in self.status_check_contexts or [] if self.enable_status_check and "*" not in name]


class BranchProtection(BaseModel):
    """A rule for branches. Its name may contain wildcards."""

    rule_name: str = ""
    branch_name: str = ""


def is_draft(pull: ForgePull) -> bool:
    """Whether a pull request is a draft, by its field or its title."""
    return pull.draft or bool(split_draft_prefix(pull.title)[0])


def gitea_mergeability(pull: ForgePull, reviews: Reviews) -> Mergeability:
    """Whether Gitea would merge it. Unknown if `mergeable` is false, as it also is while Gitea checks for conflicts."""
    if pull.pull_state is not PullRequestState.OPEN:
        return Mergeability(Verdict.NO, Obstacle.CLOSED, pull.pull_state.value)
    if is_draft(pull):
        return Mergeability(Verdict.NO, Obstacle.DRAFT, "draft")
    if not pull.mergeable:
        return Mergeability(Verdict.UNKNOWN, Obstacle.COMPUTING, "not mergeable, or not checked yet")
    if reviews.state in {ReviewsState.CHANGES_REQUESTED, ReviewsState.REQUIRED}:
        return Mergeability(Verdict.NO, Obstacle.REVIEWS, reviews.state.value)
    return Mergeability(Verdict.YES, None, "mergeable")
