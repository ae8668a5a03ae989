"""Requests about the branches that tasks work on."""

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, Field

from sandherd.contracts.commands import Note
from sandherd.contracts.events.base import ArtifactRef
from sandherd.contracts.events.branch import BranchOverlap
from sandherd.contracts.model import Count, Model, Moment
from sandherd.contracts.names import SafeName
from sandherd.contracts.pull_requests import PullRequestView
from sandherd.contracts.repositories import BranchName, Commit, RepositoryUrl
from sandherd.contracts.requests.base import Page, Request
from sandherd.contracts.states import BranchState

BranchId = SafeName
"""The id of a branch: `br-` and 20 hexadecimal digits, derived from its repository and name."""


class BranchView(Model):
    """A branch: its base, its saved and pushed commits, and what prevents its next step."""

    project: SafeName
    id: BranchId
    repository: str
    """The URL, or the label of a local repository."""
    local: bool = False
    """Whether it is a branch of a client's local repository. The client fetches it, and it can't be pushed."""
    branch: str
    base: str
    state: BranchState
    base_commit: str
    commit: str
    """The branch's commit in the spawner's mirror; the base's commit while nothing was saved."""
    pushed_commit: str | None = None
    """The last commit that the spawner pushed to the branch in the repository."""
    pushed_branch: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """The name of the branch in the repository, if it differs: the repository already had a branch of this name."""
    tasks: list[SafeName] = Field(default_factory=list)
    """The tasks that worked on it, oldest first; at most the last 100."""
    ticket: str | None = None
    created_at: Moment
    updated_at: Moment
    saving: bool = False
    """Whether commits of a sandbox were received that are not checked yet."""
    pushing: bool = False
    """Whether it will be pushed automatically."""
    problem: str | None = None
    """Why the last commits were refused or were not pushed; None if neither is the case."""
    approve: Annotated[list[str], Field(max_length=100)] = Field(default_factory=list)
    """Changed paths that a user has to approve before it is pushed."""
    overlaps: list[BranchOverlap] = Field(default_factory=list, exclude_if=lambda overlaps: not overlaps)
    """Branches that it conflicts with, found by trial merges when its last commit was saved."""
    pull_request: PullRequestView | None = Field(default=None, exclude_if=lambda value: value is None)
    """Its pull request, once there is one."""
    pull_request_problem: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """Why there is no pull request, or why it is not merged although a merge was requested."""
    pull_request_waits: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether a step of the pull request is due, such as opening it or merging it at a user's request."""
    commits: Count = 0
    """Number of commits of the branch that its base's commit does not have."""
    files_changed: Count = 0
    additions: Count = 0
    deletions: Count = 0
    diff: ArtifactRef | None = None
    """The diff from the base's commit, stored for 7 days. None: there is none, or it is too large."""
    bundle: ArtifactRef | None = None
    """The commits since the base's commit as a bundle (git-bundle(1)), stored for 7 days. None: nothing was saved."""


class BranchList(Model):
    """A page of branches, those with the latest changes first."""

    branches: list[BranchView]
    next_cursor: str | None = None
    truncated: bool = False


class ListBranches(Request[BranchList], Page):
    """List the branches of a project, those with the latest changes first."""

    Answer: ClassVar[type[BaseModel]] = BranchList
    type: ClassVar[str] = "spawner.branches"
    branch: BranchName | None = None
    """Only branches of this name, or the branch with this id."""
    task: SafeName | None = None
    """Only the branch that this task works on."""
    state: list[BranchState] = Field(default_factory=list, max_length=8)
    """Only branches in one of these states; if the list is empty, in any state."""


class PushBranch(Request[BranchView]):
    """Push a branch as soon as possible, also after a refusal; `branch.pushed` or `branch.push_refused` follows."""

    Answer: ClassVar[type[BaseModel]] = BranchView
    type: ClassVar[str] = "spawner.push_branch"
    branch: BranchId
    approved_commit: Commit | None = None
    """The commit whose changed paths the user approves. The reply is a `conflict` if the branch has another commit by
    now. None: the user approves nothing."""
    requested_by: Annotated[Note, Field(max_length=200)] | None = None
    """Who requests it, according to the client."""


class DeleteBranch(Request[BranchView]):
    """Delete a branch in the spawner's mirror, and in the repository if it was pushed; `branch.deleted` follows."""

    Answer: ClassVar[type[BaseModel]] = BranchView
    type: ClassVar[str] = "spawner.delete_branch"
    branch: BranchId
    where: Literal["everywhere", "here"] = "everywhere"
    """`everywhere`, or `here`: in the spawner's mirror only, not in the repository."""
    requested_by: Annotated[Note, Field(max_length=200)] | None = None
    """Who requests it, according to the client."""


class OpenPullRequest(Request[BranchView]):
    """Open the branch's pull request as soon as possible, or update it; `branch.pull_request_opened` follows.

    The spawner also polls the forge for it again, if it had stopped polling.
    """

    Answer: ClassVar[type[BaseModel]] = BranchView
    type: ClassVar[str] = "spawner.open_pull_request"
    branch: BranchId
    ready: bool = False
    """Whether to make the pull request ready for review. Otherwise a new pull request is a draft, unless the options of
    the task have `ready`."""
    requested_by: Annotated[Note, Field(max_length=200)] | None = None
    """Who requests it, according to the client."""


class MergeBranch(Request[BranchView]):
    """Merge the branch's pull request once its forge permits it, under any merge policy; `branch.merged` follows."""

    Answer: ClassVar[type[BaseModel]] = BranchView
    type: ClassVar[str] = "spawner.merge_branch"
    branch: BranchId
    commit: Commit | None = None
    """The commit that the user wants to be merged. The reply is a `conflict` if the branch has another commit by now.
    None: any commit."""
    requested_by: Annotated[Note, Field(max_length=200)] | None = None
    """Who requests it, according to the client."""


class PullRequestChecks(Model):
    """How many pull requests the spawner polls at their forge now."""

    branches: Count


class CheckPullRequests(Request[PullRequestChecks]):
    """Poll a forge for pull requests of all projects immediately, because a webhook has reported a change.

    The request selects pull requests of these repositories with one of the numbers, branches or commits.
    """

    Answer: ClassVar[type[BaseModel]] = PullRequestChecks
    type: ClassVar[str] = "spawner.check_pull_requests"
    repositories: Annotated[list[RepositoryUrl], Field(min_length=1, max_length=50)]
    """The URLs of the repository, which may have several."""
    numbers: Annotated[list[Count], Field(max_length=50)] = Field(default_factory=list)
    branches: Annotated[list[BranchName], Field(max_length=50)] = Field(default_factory=list)
    commits: Annotated[list[Commit], Field(max_length=50)] = Field(default_factory=list)
