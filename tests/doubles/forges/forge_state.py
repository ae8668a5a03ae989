"""What a forge stores beside git: users, tokens, repositories with pull requests, issues, checks and rules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import count
from typing import Final, Literal

from tests.doubles.forges.bare_repository import BareRepository
from tests.doubles.forges.merges import Method

ALL_METHODS: Final[frozenset[Method]] = frozenset({"merge", "squash", "rebase"})
_IDS: Final = count(1000)


def new_id() -> int:
    """An id that no other object of any kind has."""
    return next(_IDS)


@dataclass(frozen=True)
class Account:
    """A user, a bot or an organization."""

    login: str
    kind: Literal["User", "Bot", "Organization"] = "User"
    id: int = field(default_factory=new_id)


@dataclass
class Token:
    """A credential and its scope."""

    value: str
    account: Account
    kind: Literal["classic", "fine_grained", "oauth", "installation", "app"]
    expires: datetime | None = None
    repositories: frozenset[str] | None = None
    """The full names of its repositories; None is all of them."""
    permissions: Mapping[str, str] | None = None
    """Its level by permission; None is all permissions."""
    principal: str = ""
    """The owner of its rate limit: the account or the installation."""

    def reaches(self, full_name: str) -> bool:
        """Whether the token is valid for a repository."""
        return self.repositories is None or full_name in self.repositories

    def permits(self, permission: str, level: str) -> bool:
        """Whether the token has a permission at this level."""
        if self.permissions is None:
            return True
        return self.permissions.get(permission) in ({"read", "write"} if level == "read" else {"write"})


@dataclass
class BranchRules:
    """The conditions for changing branches that match a pattern. Direct pushes to them are refused."""

    pattern: str
    checks: Sequence[str] = ()
    """The contexts of the required checks and statuses."""
    approvals: int = 0
    up_to_date: bool = False
    """Whether a pull request has to contain the branch's latest commit."""
    merge_queue: bool = False
    signatures: bool = False
    ruleset: bool = True
    """Whether it is a ruleset; otherwise it is the older branch protection, whose texts differ."""


@dataclass
class Review:
    """A review of a commit."""

    author: Account
    state: str
    """`APPROVED`, `CHANGES_REQUESTED`, `COMMENTED` or `DISMISSED`."""
    commit: str
    at: datetime
    body: str = ""
    id: int = field(default_factory=new_id)


@dataclass
class Check:
    """A check run or, as `status_of_app`, an older commit status."""

    name: str
    commit: str
    status: str
    """`queued`, `in_progress` or `completed`."""
    conclusion: str | None
    at: datetime
    is_status: bool = False
    id: int = field(default_factory=new_id)


@dataclass
class Label:
    """A label of a repository."""

    name: str
    color: str = "ededed"
    description: str = ""
    """Never null: the document has a string here in lists of pull requests."""
    id: int = field(default_factory=new_id)


@dataclass
class Comment:
    """A comment on an issue or pull request."""

    author: Account
    body: str
    at: datetime
    id: int = field(default_factory=new_id)


@dataclass
class Issue:
    """An issue; each pull request is one, too."""

    number: int
    title: str
    body: str | None
    author: Account
    created: datetime
    state: str = "open"
    updated: datetime | None = None
    closed: datetime | None = None
    labels: list[Label] = field(default_factory=list)
    comments: list[Comment] = field(default_factory=list)
    id: int = field(default_factory=new_id)


@dataclass
class Pull(Issue):
    """A pull request between branches of one repository."""

    head: str = ""
    base: str = ""
    head_sha: str = ""
    base_sha: str = ""
    draft: bool = False
    merged: datetime | None = None
    merged_by: Account | None = None
    merge_commit: str | None = None
    reviewers: list[Account] = field(default_factory=list)
    reviews: list[Review] = field(default_factory=list)
    unknown_gets: int = 0
    """The number of gets that still show `mergeable: null`."""
    update_gets: int = -1
    """The number of gets until a requested update of its branch is visible; -1 without one."""
    shown_unknown: bool = True
    """Whether the latest get showed `mergeable: null`, or there was none."""
    queued: bool = False
    """Whether it is in the merge queue, or merged once its checks succeed."""
    auto_merge: Method | None = None
    """The method by which it is merged once its requirements are met."""


@dataclass
class Repository:
    """A repository."""

    full_name: str
    owner: Account
    git: BareRepository
    created: datetime
    default_branch: str = "main"
    methods: frozenset[Method] = ALL_METHODS
    allow_auto_merge: bool = False
    private: bool = True
    rules: list[BranchRules] = field(default_factory=list)
    issues: dict[int, Issue] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    labels: dict[str, Label] = field(default_factory=dict)
    verified: set[str] = field(default_factory=set)
    """Commits that the forge has signed."""
    collaborators: set[str] = field(default_factory=set)
    """Logins of the users who can review."""
    unseen: int = 0
    """The number of attempts to create a pull request that do not see a branch just pushed."""
    unseen_left: dict[str, int] = field(default_factory=dict)
    id: int = field(default_factory=new_id)

    @property
    def name(self) -> str:
        """The name without the owner."""
        return self.full_name.split("/")[1]

    @property
    def pulls(self) -> dict[int, Pull]:
        """The pull requests by number."""
        return {number: one for number, one in self.issues.items() if isinstance(one, Pull)}

    def next_number(self) -> int:
        """The next number of an issue or pull request."""
        return max(self.issues, default=0) + 1

    def label(self, name: str) -> Label:
        """Find a label, or create it."""
        return self.labels.setdefault(name, Label(name))

    def rules_of(self, branch: str) -> list[BranchRules]:
        """The rules of a branch."""
        return [one for one in self.rules if fnmatchcase(branch, one.pattern)]

    def protect(self, pattern: str, **requirements: object) -> BranchRules:
        """Protect the branches that match a pattern, for pull requests and for pushes by git."""
        made = BranchRules(pattern, **requirements)  # type: ignore[arg-type]  # by name
        self.rules.append(made)
        self.git.protect({f"refs/heads/{one.pattern}": _refusal(one) for one in self.rules})
        return made

    def report_check(self, commit: str, name: str, conclusion: str | None, at: datetime) -> Check:
        """Add a check run; without a conclusion it is in progress."""
        status = "completed" if conclusion else "in_progress"
        self.checks.append(Check(name, commit, status, conclusion, at))
        return self.checks[-1]

    def report_status(self, commit: str, context: str, state: str, at: datetime) -> Check:
        """Add a commit status: `pending`, `success`, `failure` or `error`."""
        self.checks.append(Check(context, commit, "completed", state, at, is_status=True))
        return self.checks[-1]


def _refusal(rules: BranchRules) -> str:
    through = "the merge queue" if rules.merge_queue else "a pull request"
    if rules.ruleset:
        return f"error: GH013: Repository rule violations found.\\n\\n- Changes must be made through {through}."
    return f"error: GH006: Protected branch update failed.\\nerror: Changes must be made through {through}."
