"""Responses of GitHub for tests to script: limits, and refused merges that give their reason only in the text."""

from typing import Final

from tests.doubles.forges.replies import Reply

_DOCS: Final = "https://docs.github.com/rest"
REFUSED_MERGES: Final = (
    "Pull Request is not mergeable",
    "Pull Request has merge conflicts",
    "Pull Request is still a draft",
    "Base branch was modified. Review and try the merge again.",
    'Required status check "ci" is expected.',
    "2 of 3 required status checks have not succeeded: 1 failing, 1 pending.",
    "At least 1 approving review is required by reviewers with write access.",
    "Merge commits are not allowed on this repository.",
    "This branch can't be rebased",
    "Changes must be made through the merge queue",
    "Repository rule violations found\n\nChanges must be made through the merge queue\n\n",
)


def refused_merge(text: str) -> Reply:
    """405 with this text."""
    return Reply(405, {"message": text, "documentation_url": _DOCS})


def moved_head() -> Reply:
    """409: the head is another commit than `sha`."""
    return Reply(
        409, {"message": "Head branch was modified. Review and try the merge again.", "documentation_url": _DOCS}
    )


def secondary_limit(retry_after: int | None = 60, status: int = 403) -> Reply:
    """403 or 429, with the seconds to wait unless `None`."""
    text = "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    return Reply(status, {"message": text, "documentation_url": _DOCS}, headers)


def primary_limit(reset: int, status: int = 403) -> Reply:
    """403 or 429 without `retry-after`; `reset` is in seconds since the epoch."""
    headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(reset)}
    return Reply(status, {"message": "API rate limit exceeded for installation.", "documentation_url": _DOCS}, headers)


def bad_credentials() -> Reply:
    """401, as for an expired token."""
    return Reply(401, {"message": "Bad credentials", "documentation_url": _DOCS})
