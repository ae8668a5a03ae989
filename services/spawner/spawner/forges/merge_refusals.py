"""The reasons why GitHub or Gitea refuses a merge. The statuses are ambiguous, so the texts of the replies decide."""

import re
from typing import Final

from spawner.forges.faults import ForgeError, ForgeFault
from spawner.forges.forge import MergeOutcome, MergeResult, Obstacle, PullRequestState
from spawner.forges.replies import ForgePull

REFUSALS: Final = frozenset({404, 405, 409, 422})
"""HTTP statuses of a refused merge. Gitea responds with 404 if the pull request is closed."""
_WAITING, _REFUSED = MergeResult.WAITING, MergeResult.REFUSED
_PATTERNS: Final = (
    (_REFUSED, Obstacle.QUEUE, r"not have a merge queue"),
    (_WAITING, Obstacle.QUEUE, r"merge queue"),
    (_REFUSED, Obstacle.HEAD_MOVED, r"head branch was modified|head out of date|sha does not match|head sha"),
    (_WAITING, Obstacle.BEHIND, r"head branch is out of date|not up.to.date|out.of.date with the base|behind the base"),
    (_WAITING, Obstacle.COMPUTING, r"base branch was modified|try (the merge )?again|merge push out of date"),
    (_REFUSED, Obstacle.METHOD, r"not allowed on this repository|merge method|merge style|not allowed an allowed"),
    (_REFUSED, Obstacle.DRAFT, r"\bdraft\b|work.in.progress"),
    (_REFUSED, Obstacle.CONFLICT, r"conflict|can't be rebased|cannot be rebased"),
    (_REFUSED, Obstacle.REVIEWS, r"changes (were )?requested|request(ed|ing) changes"),
    (_WAITING, Obstacle.REVIEWS, r"approv|review"),
    (_WAITING, Obstacle.CHECKS, r"status checks?|checks? (is|are|has|have) |required check|deployment"),
    (_REFUSED, Obstacle.RULES, r"not authorized|not allowed to merge|protected|rule violations|sign|rejected"),
)
"""The result and the obstacle for texts that match a pattern. The first match decides."""


def early_outcome(pull: ForgePull, commit: str) -> MergeOutcome | None:
    """The outcome of a merge that must not be requested; None if it can be requested.

    No merge is requested at another commit, or before the forge has decided whether it is possible.
    """
    if pull.pull_state is not PullRequestState.OPEN or pull.head.sha != commit:
        return refused_merge(ForgeError(ForgeFault.CONFLICT, "", reason="not open at this commit"), pull, commit)
    if pull.mergeable is None:
        return MergeOutcome(MergeResult.WAITING, obstacle=Obstacle.COMPUTING, reason="mergeable is unknown")
    return None


def refused_merge(refused: ForgeError, pull: ForgePull, commit: str) -> MergeOutcome:
    """The outcome of a refused merge of `commit`. It depends on the refusal and the pull request's current state.

    If `commit` is merged now, the outcome is success, because a user or an earlier request, whose response was lost,
    has merged it.
    """
    reason = refused.reason
    if pull.pull_state is PullRequestState.MERGED and pull.head.sha not in {"", commit}:
        return MergeOutcome(MergeResult.WAITING, obstacle=Obstacle.HEAD_MOVED, reason="merged with other commits")
    if pull.pull_state is PullRequestState.MERGED:
        return MergeOutcome(MergeResult.MERGED, commit=pull.merge_commit_sha or None)
    if pull.pull_state is PullRequestState.CLOSED:
        return MergeOutcome(MergeResult.REFUSED, obstacle=Obstacle.CLOSED, reason=reason)
    if pull.head.sha != commit:
        return MergeOutcome(MergeResult.REFUSED, obstacle=Obstacle.HEAD_MOVED, reason=reason)
    return _by_text(reason) or _by_state(reason, pull, conflict=refused.status == 409)


def _by_text(reason: str) -> MergeOutcome | None:
    for result, obstacle, pattern in _PATTERNS:
        if re.search(pattern, reason, re.IGNORECASE):
            return MergeOutcome(result, obstacle=obstacle, reason=reason)
    return None


def _by_state(reason: str, pull: ForgePull, *, conflict: bool) -> MergeOutcome:
    """The outcome if no pattern matches, as for "Pull Request is not mergeable". By default it is `waiting`."""
    if conflict or pull.mergeable_state == "dirty":
        return MergeOutcome(MergeResult.REFUSED, obstacle=Obstacle.CONFLICT, reason=reason)
    if pull.draft:
        return MergeOutcome(MergeResult.REFUSED, obstacle=Obstacle.DRAFT, reason=reason)
    is_blocked = pull.mergeable is True and pull.mergeable_state == "blocked"
    obstacle = Obstacle.RULES if is_blocked else Obstacle.COMPUTING
    return MergeOutcome(MergeResult.WAITING, obstacle=obstacle, reason=reason)
