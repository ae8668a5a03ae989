"""The views of pull requests for clients, and their comparison. Pure."""

from datetime import datetime
from typing import Any, Final

from sandherd.contracts.pull_requests import MAX_CHECKS, PullRequestView
from spawner.forges.forge import PullRequest, PullRequestState, PullRequestStatus
from spawner.repositories.pull_request_record import PullRequestRecord

_COMPARED_FIELDS: Final = ("state", "base", "draft", "commit", "checks", "failed_checks", "reviews")
"""The fields of a view that are always compared. `mergeable` and `obstacle` are compared only if they are known."""


def differs(view: PullRequestView, before: PullRequestView) -> bool:
    """Whether a pull request has changed since the view `before`. A `mergeable` that is unknown now is no change."""
    known = ("mergeable", "obstacle") if view.mergeable != "unknown" else ()
    return any(getattr(view, name) != getattr(before, name) for name in (*_COMPARED_FIELDS, *known))


def polled_view(last_view: PullRequestView, status: PullRequestStatus, now: datetime) -> PullRequestView:
    """The view after a poll, with the status that the forge has reported."""
    pull_request, mergeability, checks, reviews = (
        status.pull_request,
        status.mergeability,
        status.checks,
        status.reviews,
    )
    return last_view.model_copy(
        update={
            "base": pull_request.base,
            "draft": pull_request.draft,
            "commit": pull_request.head_commit,
            "checks": checks.state.value,
            "failed_checks": list(checks.failed[:MAX_CHECKS]),
            "pending_checks": list(checks.pending[:MAX_CHECKS]),
            "reviews": reviews.state.value,
            "approved_by": list(reviews.approved_by[:MAX_CHECKS]),
            "mergeable": mergeability.verdict.value,
            "obstacle": mergeability.obstacle.value if mergeability.obstacle else None,
            "checked_at": now,
        }
    )


def opened_view(pull_request: PullRequest, pull: PullRequestRecord) -> PullRequestView:
    """The view after the pull request was opened or updated. Checks and reviews of a new commit are not known yet."""
    old = pull.shown or PullRequestView(number=pull_request.number, url=pull_request.url)
    known: dict[str, Any] = {}
    if old.commit == pull_request.head_commit:
        known = {"checks": old.checks, "reviews": old.reviews, "failed_checks": old.failed_checks}
    return PullRequestView(
        number=pull_request.number,
        url=pull_request.url,
        state=PullRequestState.OPEN.value,
        base=pull_request.base,
        draft=pull_request.draft,
        commit=pull_request.head_commit,
        **known,
    )
