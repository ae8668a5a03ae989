"""The interface of all forges, and the types of its arguments and results. Pure.

The term "pull request" includes GitLab's merge requests. Texts of a forge have a limited length and no control
characters, but may be hostile.
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
    """The forge has not computed it, or reports a state that is not known here. The caller should wait."""


class Obstacle(StrEnum):
    """The kinds of obstacles to a merge. Decisions are based on the kind, never on a text."""

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
    """Only a merge queue may change the base branch."""
    METHOD = "method"
    """The repository does not permit this method of merging."""
    HEAD_MOVED = "head_moved"
    """The branch is not at the expected commit."""
    CLOSED = "closed"
    COMPUTING = "computing"
    """The forge has not finished. The same request may succeed later."""


@dataclass(frozen=True)
class Mergeability:
    """Whether a pull request can be merged, the obstacle if it can't, and the forge's state or text as the reason."""

    verdict: Verdict
    obstacle: Obstacle | None = None
    reason: str = ""


class ChecksState(StrEnum):
    """The result of all checks of a commit."""

    NONE = "none"
    """No check has reported. This is not success, because checks may start later."""
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
    """No approval is required, and there is neither an approval nor a request for changes."""
    REQUIRED = "required"
    """An approval of the head commit is missing."""
    CHANGES_REQUESTED = "changes_requested"
    APPROVED = "approved"


@dataclass(frozen=True)
class Reviews:
    """The reviews: the accounts whose last decision is an approval, and the number of missing approvals."""

    state: ReviewsState
    approved_by: tuple[str, ...] = ()
    missing: int = 0


@dataclass(frozen=True)
class PullRequestDraft:
    """The wanted content of a pull request from `head` into `base`, both branches of one repository.

    `commit` is the commit of `head`, if known. With it, a merged or closed pull request of this commit is also found,
    so that no second one is created after a lost response or a user's decision.
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
    """The resulting commit in the base branch, if the pull request is merged."""
    unapplied: tuple[str, ...] = ()
    """The parts of a `PullRequestDraft` that the forge refused, such as an unknown reviewer: one sentence for each."""


@dataclass(frozen=True)
class PullRequestStatus:
    """A pull request, with the facts that a decision about its merge needs."""

    pull_request: PullRequest
    mergeability: Mergeability
    checks: Checks = field(default_factory=lambda: Checks(ChecksState.NONE))
    reviews: Reviews = field(default_factory=lambda: Reviews(ReviewsState.NONE))


class MergeMethod(StrEnum):
    """The method by which the commits get into the base branch."""

    MERGE = "merge"
    SQUASH = "squash"
    REBASE = "rebase"


class MergeResult(StrEnum):
    """The outcome of a request to merge."""

    MERGED = "merged"
    QUEUED = "queued"
    """The forge merges it later. The caller has to poll the pull request."""
    WAITING = "waiting"
    """Not merged now. The same request may succeed later."""
    REFUSED = "refused"
    """Not merged. The same request fails again, unless an agent or a user changes something."""


@dataclass(frozen=True)
class MergeOutcome:
    """The result of a request to merge, with `commit` if it was merged, else with the obstacle and the forge's text."""

    result: MergeResult
    commit: str | None = None
    obstacle: Obstacle | None = None
    reason: str = ""


class Forge(Protocol):
    """One repository of a forge. Each method raises `ForgeError`, and can be repeated after a transient one."""

    async def find_or_create_pull_request(self, draft: PullRequestDraft) -> PullRequest:
        """The pull request of this head and base, which is created if there is none.

        In an existing one, missing labels and reviewers are added, and the spawner's part of its body is updated unless
        users have changed that part (`body_section`). Its title does not change. A merged or closed pull request is
        returned unchanged. A lost response does not lead to a second pull request.
        """
        ...

    async def update_pull_request(self, number: int, draft: PullRequestDraft) -> PullRequest:
        """Update the pull request with this number, whatever its base is now, as `find_or_create_pull_request` does.

        A merged or closed pull request is returned unchanged.
        """
        ...

    async def mark_ready(self, number: int) -> None:
        """Make a draft ready for review. Does nothing if the pull request is not an open draft."""
        ...

    async def pull_request(self, number: int) -> PullRequestStatus:
        """A pull request with its checks and reviews. Requests for unchanged parts do not count for the rate limit."""
        ...

    async def merge(
        self, number: int, commit: str, method: MergeMethod = MergeMethod.MERGE, *, queue: bool = False
    ) -> MergeOutcome:
        """Merge a pull request if its head is `commit`. It is a success if the commit is merged already.

        While the forge has not computed whether it can be merged, no merge is requested, and the outcome is `waiting`.

        `queue`: the forge decides when to merge, by its merge queue or when checks have passed.
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
