"""The interface of all forges: what a pull request is, and what can be done with one. Pure.

A "pull request" is also GitLab's merge request. Texts of a forge have a limited length and no control characters, but
may be hostile otherwise.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class PullRequestState(StrEnum):
    """The state of a pull request."""

    OPEN = "open"
    MERGED = "merged"
    CLOSED = "closed"
    """Closed without a merge."""


class Verdict(StrEnum):
    """Whether a pull request can be merged now."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    """The forge has not computed it, or reports a state that is not known here. Do not merge, but wait."""


class Obstacle(StrEnum):
    """What prevents a merge. A closed set: decisions use it, never a text."""

    CONFLICT = "conflict"
    """The changes conflict with the base branch."""
    BEHIND = "behind"
    """The branch has to be updated from its base first."""
    DRAFT = "draft"
    CHECKS = "checks"
    """A required check has failed, or has not passed yet."""
    REVIEWS = "reviews"
    """An approval is missing, or a reviewer requested changes."""
    RULES = "rules"
    """Another rule of the repository."""
    QUEUE = "queue"
    """The base branch is changed by a merge queue only."""
    METHOD = "method"
    """The repository does not permit this method of merging."""
    HEAD_MOVED = "head_moved"
    """The branch is not at the expected commit."""
    CLOSED = "closed"
    COMPUTING = "computing"
    """The forge has not finished; the same request may succeed later."""


@dataclass(frozen=True)
class Mergeability:
    """Whether a pull request can be merged; the obstacle if not, and the forge's own term or text for it."""

    verdict: Verdict
    obstacle: Obstacle | None = None
    reason: str = ""


class ChecksState(StrEnum):
    """The result of all checks of a commit."""

    NONE = "none"
    """No check has reported: this is not success, because checks may start later."""
    PENDING = "pending"
    FAILED = "failed"
    PASSED = "passed"


@dataclass(frozen=True)
class Checks:
    """The checks of the head commit, by name. A required check that has not reported is pending."""

    state: ChecksState
    failed: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()


class ReviewsState(StrEnum):
    """The result of all reviews."""

    NONE = "none"
    """No approval is required, and no review decides."""
    REQUIRED = "required"
    """An approval of the head commit is missing."""
    CHANGES_REQUESTED = "changes_requested"
    APPROVED = "approved"


@dataclass(frozen=True)
class Reviews:
    """The reviews: the accounts by their last decision, and how many approvals are missing."""

    state: ReviewsState
    approved_by: tuple[str, ...] = ()
    changes_requested_by: tuple[str, ...] = ()
    missing: int = 0


@dataclass(frozen=True)
class PullRequestDraft:
    """A pull request as it should be: from `head` into `base`, both branches of one repository.

    `commit` is the commit of `head`, if known. Then a pull request of this commit that is merged or closed is also
    found, so that no second one is created after a lost response or a user's decision.
    """

    head: str
    base: str
    title: str
    body: str
    commit: str | None = None
    draft: bool = False
    labels: tuple[str, ...] = ()
    reviewers: tuple[str, ...] = ()


@dataclass(frozen=True)
class PullRequest:
    """A pull request of a forge."""

    number: int
    url: str
    """The page for users. It is built from the configured URL, never from a response."""
    state: PullRequestState
    head: str
    base: str
    head_commit: str
    draft: bool = False
    merged_commit: str | None = None
    """The commit in the base branch, once it is merged."""
    unapplied: tuple[str, ...] = ()
    """The parts of a `PullRequestDraft` that the forge refused, such as an unknown reviewer: one sentence for each."""


@dataclass(frozen=True)
class PullRequestStatus:
    """A pull request, with the facts that decide about its merge."""

    pull_request: PullRequest
    mergeability: Mergeability
    checks: Checks = field(default_factory=lambda: Checks(ChecksState.NONE))
    reviews: Reviews = field(default_factory=lambda: Reviews(ReviewsState.NONE))


class MergeMethod(StrEnum):
    """How the commits get into the base branch."""

    MERGE = "merge"
    SQUASH = "squash"
    REBASE = "rebase"


class MergeResult(StrEnum):
    """The outcome of a request to merge."""

    MERGED = "merged"
    QUEUED = "queued"
    """The forge merges it later: poll the pull request."""
    WAITING = "waiting"
    """Not merged now; the same request may succeed later."""
    REFUSED = "refused"
    """Not merged. The same request fails again, unless an agent or a user changes something."""


@dataclass(frozen=True)
class MergeOutcome:
    """The result of a request to merge: `commit` if merged, `obstacle` and the forge's text if not."""

    result: MergeResult
    commit: str | None = None
    obstacle: Obstacle | None = None
    reason: str = ""


class Forge(Protocol):
    """One repository of a forge. Each method raises `ForgeError`, and can be repeated after a transient one."""

    async def find_or_create_pull_request(self, draft: PullRequestDraft) -> PullRequest:
        """The pull request of this head and base, created if there is none.

        If one exists, its labels, reviewers and the spawner's part of its body are updated, unless users have changed
        that part (`body_section`). Its title does not change. A lost response does not lead to a second one. One that
        is merged or closed is returned unchanged.
        """
        ...

    async def update_pull_request(self, number: int, draft: PullRequestDraft) -> PullRequest:
        """The pull request with this number, whatever its base is now; updated as by `find_or_create_pull_request`.

        One that is merged or closed is returned unchanged.
        """
        ...

    async def mark_ready(self, number: int) -> None:
        """Make a draft ready for review. Nothing is changed if it is not an open draft."""
        ...

    async def pull_request(self, number: int) -> PullRequestStatus:
        """A pull request with its checks and reviews. Unchanged parts do not count for the rate limit."""
        ...

    async def merge(
        self, number: int, commit: str, method: MergeMethod = MergeMethod.MERGE, *, queue: bool = False
    ) -> MergeOutcome:
        """Merge a pull request if its head is `commit`; merging one that is merged already is a success.

        No merge is requested while the forge has not computed whether it can be merged: the outcome is `waiting`.

        `queue`: the forge decides when to merge: by its merge queue, or when checks have passed.
        """
        ...

    async def branch_protected(self, branch: str) -> bool:
        """Whether a rule of the forge prevents direct pushes to the branch, which may not exist."""
        ...

    async def default_branch(self) -> str:
        """The name of the repository's default branch."""
        ...

    async def issue_exists(self, number: int) -> bool:
        """Whether the repository has this issue. False for a pull request, and for a moved or deleted issue."""
        ...
