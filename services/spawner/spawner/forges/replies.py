"""The common part of the replies of GitHub and Gitea, and the evaluation of checks and reviews. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from spawner.forges.faults import ForgeError, ForgeFault
from spawner.forges.forge import (
    Checks,
    ChecksState,
    Obstacle,
    PullRequestDraft,
    PullRequestState,
    Reviews,
    ReviewsState,
)
from spawner.forges.plain_text import plain

_NAME_CHARACTERS: Final = 200
_MAX_NAMES: Final = 100
_DRAFT_PREFIXES: Final = re.compile(r"(?:\s*(?:\[(?:draft|wip)\]|\(draft\)|(?:draft|wip):)\s*)+", re.IGNORECASE)
_INVALID_BRANCH: Final = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|^[-/.]|[/.]$|\.lock(/|$)|^@$")

Name = Annotated[str, AfterValidator(lambda text: plain(text, _NAME_CHARACTERS))]
Number = Annotated[int, Field(ge=1, le=2**53)]


def _empty_if_none(value: Any) -> Any:
    return "" if value is None else value


Text = Annotated[str, BeforeValidator(_empty_if_none)]
"""A text; empty if the value is null."""
Commit = Annotated[str, BeforeValidator(_empty_if_none), Field(pattern=r"^([0-9a-f]{40}([0-9a-f]{24})?)?$")]
"""A commit's id; empty if the value is null. It is validated because git gets it as an argument."""


def _valid_branch(name: str) -> str:
    """The name. Raises `ValueError` if git would refuse it (git-check-ref-format(1)), or interpret it as an option."""
    if len(name) > _NAME_CHARACTERS or _INVALID_BRANCH.search(name):
        raise ValueError("not a valid name of a branch")
    return name


Branch = Annotated[str, BeforeValidator(_empty_if_none), AfterValidator(_valid_branch)]
"""A branch's name; empty if the value is null."""


class ForgeUser(BaseModel):
    """A user of a forge."""

    login: Name


class Label(BaseModel):
    """A label of a repository."""

    name: str
    id: int = 0


class ForgeProject(BaseModel):
    """A repository, as a part of a reply."""

    full_name: str = ""
    default_branch: Branch = ""


class BranchEnd(BaseModel):
    """The head or the base of a pull request. `repo` is None if the repository was deleted."""

    ref: str
    sha: Commit = ""
    repo: ForgeProject | None = None


class ForgePull(BaseModel):
    """A pull request of GitHub or Gitea. Lists of pull requests omit the fields about a merge."""

    number: Number
    state: str
    title: Text = ""
    body: Text = ""
    draft: bool = False
    merged: bool = False
    merged_at: str | None = None
    mergeable: bool | None = None
    mergeable_state: str = "unknown"
    merge_commit_sha: Commit = ""
    head: BranchEnd
    base: BranchEnd
    labels: list[Label] | None = None
    requested_reviewers: list[ForgeUser] | None = None
    user: ForgeUser | None = None
    node_id: str = ""

    @property
    def pull_state(self) -> PullRequestState:
        """The state. The merge commit is not used for it, since that of an open pull request is a trial merge."""
        if self.merged or self.merged_at:
            return PullRequestState.MERGED
        return PullRequestState.OPEN if self.state == "open" else PullRequestState.CLOSED

    def is_for(self, draft: PullRequestDraft, repository: str) -> bool:
        """Whether it has the draft's head and base, and its head is in this repository, not in a fork."""
        is_own_branch = self.head.repo is not None and self.head.repo.full_name.casefold() == repository.casefold()
        return is_own_branch and (self.head.ref, self.base.ref) == (draft.head, draft.base)


def select_pull(pulls: Iterable[ForgePull], draft: PullRequestDraft, repository: str) -> ForgePull | None:
    """The open pull request of a draft, else the one that was merged or closed with the draft's commit, or None."""
    of_draft = [pull for pull in pulls if pull.is_for(draft, repository)]
    open_pulls = (pull for pull in of_draft if pull.pull_state is PullRequestState.OPEN)
    at_commit = (pull for pull in of_draft if draft.commit and pull.head.sha == draft.commit)
    return next(open_pulls, None) or next(at_commit, None)


def split_draft_prefix(title: str) -> tuple[str, str]:
    """The prefix of a title that makes a pull request of GitLab or Gitea a draft, and the rest of the title."""
    match = _DRAFT_PREFIXES.match(title)
    return (match[0], title[match.end() :]) if match else ("", title)


def is_same_text(one: str, other: str) -> bool:
    """Whether two texts are equal except for line endings and surrounding whitespace, which forges change."""
    return one.replace("\r\n", "\n").strip() == other.replace("\r\n", "\n").strip()


def required_default_branch(default_branch: str) -> str:
    """The default branch of a reply. Raises `ForgeError` (not found) if the repository has none."""
    if not default_branch:
        raise ForgeError(ForgeFault.NOT_FOUND, "the repository has no default branch; name a base branch")
    return default_branch


def checks_of(results: Iterable[tuple[str, ChecksState]], required: Iterable[str] = ()) -> Checks:
    """The checks by name. Of several checks with the same name, a failed one decides, else a pending one."""
    states_by_name: dict[str, set[ChecksState]] = {}
    for name, state in results:
        states_by_name.setdefault(name, set()).add(state)
    for name in required:
        states_by_name.setdefault(plain(name, _NAME_CHARACTERS), {ChecksState.PENDING})
    by_state = {state: _names(states_by_name, state) for state in _WORST_FIRST}
    overall = next((state for state in _WORST_FIRST if by_state[state]), ChecksState.NONE)
    failed, pending, passed = (by_state[state] for state in _WORST_FIRST)
    return Checks(overall, failed, pending, passed)


_WORST_FIRST: Final = (ChecksState.FAILED, ChecksState.PENDING, ChecksState.PASSED)


def _names(states_by_name: dict[str, set[ChecksState]], wanted: ChecksState) -> tuple[str, ...]:
    """The names of the checks that have this state, at most `_MAX_NAMES`."""
    worst = {name: next(one for one in _WORST_FIRST if one in states) for name, states in states_by_name.items()}
    return tuple(sorted(name for name, state in worst.items() if state is wanted)[:_MAX_NAMES])


class Review(BaseModel):
    """A review as GitHub or Gitea reports it. Each sets only some of the fields."""

    user: ForgeUser | None = None
    state: str
    commit_id: Text = ""
    author_association: str = "MEMBER"
    official: bool = True
    stale: bool = False
    dismissed: bool = False


_APPROVED: Final = "APPROVED"
_CHANGE_REQUESTS: Final = frozenset({"CHANGES_REQUESTED", "REQUEST_CHANGES"})
"""The state of a review that requests changes, by GitHub's and Gitea's name."""
_DECISIONS: Final = _CHANGE_REQUESTS | {_APPROVED, "DISMISSED"}
_TRUSTED_ROLES: Final = frozenset({"OWNER", "MEMBER", "COLLABORATOR"})
"""GitHub's `author_association` of users with a role in the repository."""


@dataclass(frozen=True)
class ReviewRule:
    """The number of approvals that the base branch requires."""

    approvals: int = 0


def reviews_of(reviews: Sequence[Review], head_commit: str, rule: ReviewRule) -> Reviews:
    """The reviews. The last decision of each account counts.

    An approval counts only for the reviewed commit, so that an agent can't add commits that no user has seen, and only
    from a user with a role in the repository. A request for changes counts from any account, because forges do not show
    the roles of all accounts, such as private members of an organization, and because nothing is lost without a merge.
    """
    last: dict[str, Review] = {}
    for review in reviews:
        if review.user and review.state in _DECISIONS:
            last[review.user.login] = review
    valid = {login: review for login, review in last.items() if not review.dismissed}
    requested = any(review.state in _CHANGE_REQUESTS for review in valid.values())
    approved = tuple(sorted(login for login, review in valid.items() if _approves(review, head_commit)))
    missing = max(rule.approvals - len(approved), 0)
    return Reviews(_reviews_state(requested, missing, bool(approved)), approved, missing)


def _approves(review: Review, head_commit: str) -> bool:
    is_trusted = review.author_association in _TRUSTED_ROLES and review.official
    return is_trusted and review.state == _APPROVED and review.commit_id == head_commit and not review.stale


def _reviews_state(requested: bool, missing: int, approved: bool) -> ReviewsState:  # noqa: FBT001  # three facts
    if requested:
        return ReviewsState.CHANGES_REQUESTED
    if missing:
        return ReviewsState.REQUIRED
    return ReviewsState.APPROVED if approved else ReviewsState.NONE


def obstacle_of(reviews: Reviews, checks: Checks) -> Obstacle:
    """The obstacle to the merge of a pull request that the forge reports as blocked."""
    if reviews.state in {ReviewsState.CHANGES_REQUESTED, ReviewsState.REQUIRED}:
        return Obstacle.REVIEWS
    return Obstacle.CHECKS if checks.state in {ChecksState.FAILED, ChecksState.PENDING} else Obstacle.RULES
