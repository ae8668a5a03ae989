"""A branch that tasks work on, as it is stored in the bucket `branches`."""

from hashlib import sha256
from typing import Any, Final, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict

from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.events.branch import BranchOverlap
from sandherd.contracts.names import SafeName
from sandherd.contracts.pull_requests import PullRequestOptions
from sandherd.contracts.repositories import Repository
from sandherd.contracts.requests import BranchView
from sandherd.contracts.states import BranchState, check_transition
from spawner.records.base_record import Record
from spawner.repositories.pull_request_record import PullRequestRecord

_ID_DIGITS: Final = 20
"""Hexadecimal digits of a branch's id."""


class ReceivedCommits(BaseModel):
    """A bundle with commits that a sandbox saved or pushed."""

    model_config = ConfigDict(frozen=True)

    sandbox: SafeName
    task: SafeName
    commit: str
    bundle: ArtifactRef
    partial: bool = False
    """Whether the bundle has only the commits after the branch's commit at that time. True for a push, not for a save.
    """


class SignedCommits(BaseModel):
    """A bundle that the spawner stores in place of a sandbox's bundle.

    Its commits are signed, or it also has the commits that a partial bundle omits.
    """

    model_config = ConfigDict(frozen=True)

    commit: str
    bundle: ArtifactRef


class BranchSize(BaseModel):
    """The size of a branch's changes since its base commit."""

    model_config = ConfigDict(frozen=True)

    commits: int = 0
    files_changed: int = 0
    additions: int = 0
    deletions: int = 0


class BranchRecord(Record):
    """A branch of a repository of a project: its base, its saved commits, and its pushed commits."""

    id: SafeName
    life: str
    """The `life` of the task that the branch was created for: 32 hexadecimal digits. It distinguishes the branch from a
    later branch of the same name."""
    tasks: tuple[SafeName, ...]
    """The tasks that worked on it, the last one last. There is at least one."""
    repository: str
    """The name under which tasks share the repository: the URL without `.git`, or the label of a local one."""
    url: str | None = None
    origin: ArtifactRef | None = None
    """The last uploaded bundle with the base of a local repository; None if the repository has a URL."""
    branch: str
    base: str
    base_commit: str
    commit: str
    """The branch's last commit. After a crash, the mirror's branch may be at another one, until the next step."""
    unsigned: str | None = None
    """The sandbox's commit, which `commit` replaces as its signed form; None if `commit` was not signed."""
    pushed: str | None = None
    """The commit that was pushed last."""
    tried: str | None = None
    """The commit with which the first push was begun. If the repository's branch has this commit, the spawner pushed
    it."""
    tried_before: tuple[str, ...] = ()
    """Earlier commits with which a first push was begun. A git process may complete it after its spawner was killed."""
    pushed_as: str | None = None
    """The branch's name in the repository, if another branch of the repository collides with `branch`."""
    bundle: ArtifactRef | None = None
    """The commits since the base's commit."""
    diff: ArtifactRef | None = None
    size: BranchSize = BranchSize()
    ticket: str | None = None
    state: BranchState = BranchState.LIVE
    push: bool = True
    """Whether the branch is pushed whenever commits are saved: the choice of the task that began to work on it last."""
    overlaps: tuple[BranchOverlap, ...] = ()
    """The branches that conflict with this one, found by trial merges of the commit `merged_on_trial`."""
    merged_on_trial: str | None = None
    """The commit that was last merged with other branches on trial."""
    objects_in: tuple[ReceivedCommits, ...] = ()
    """The bundles with objects of Git LFS that are not uploaded yet: the last such bundle of each sandbox."""
    received: tuple[ReceivedCommits, ...] = ()
    """Bundles to be checked and added, in this order."""
    push_wanted: bool = False
    delete_wanted: Literal["everywhere", "here"] | None = None
    """Where the branch is to be deleted: also in its repository, or in the mirror only."""
    approve: tuple[str, ...] = ()
    """Changed paths that a user has to approve before the branch is pushed."""
    approved: str | None = None
    """The commit whose paths a user has approved."""
    approved_paths: tuple[str, ...] = ()
    """The paths that the user has approved with `approved`."""
    problem: str | None = None
    """Why the last commits were refused or not pushed."""
    pull_options: PullRequestOptions | None = None
    """The options of the branch's pull request, from the last task that has such options."""
    pull: PullRequestRecord | None = None
    """The branch's pull request; None until one is wanted."""
    created_at: AwareDatetime
    updated_at: AwareDatetime

    @property
    def name(self) -> str:
        """The task that worked on the branch last, which is the subject of the branch's events."""
        return self.tasks[-1]

    @property
    def remote_branch(self) -> str:
        """The name of this branch in its repository."""
        return self.pushed_as or self.branch

    @property
    def tried_commits(self) -> frozenset[str]:
        """The commits with which a first push was begun."""
        return frozenset({*self.tried_before, *([self.tried] if self.tried else [])})

    @property
    def key(self) -> str:
        """The record's key in the bucket."""
        return f"{self.project}.{self.id}"

    @property
    def source(self) -> str:
        """The source of the branch's events."""
        return f"/sandherd/spawner/{self.id}/{self.life}"

    @property
    def local(self) -> bool:
        """Whether the repository is on a client's machine and has no URL."""
        return self.origin is not None

    @property
    def has_work(self) -> bool:
        """Whether a step is due for the branch."""
        return bool(self.received or self.push_wanted or self.delete_wanted) or self.needs_trial_merges

    @property
    def needs_trial_merges(self) -> bool:
        """Whether trial merges of the present commit with other branches are due."""
        is_empty = self.commit == self.base_commit
        return self.state is BranchState.LIVE and not is_empty and self.merged_on_trial != self.commit

    def event_ids(self) -> dict[str, str | None]:
        """The ids in the branch's events: the task that worked on the branch last."""
        return {"taskid": self.name, "sandboxid": None}

    def entering(self, state: BranchState, **changes: Any) -> Self:
        """The record in another state. Raises `TransitionRefusedError` if the transition is not allowed."""
        check_transition(self.state, state)
        return self.model_copy(update={"state": state, **changes})

    def view(self) -> BranchView:
        """The branch as clients see it."""
        return BranchView(
            **{name: getattr(self, name) for name in _VIEW_FIELDS},
            **self.size.model_dump(),
            local=self.local,
            pushed_commit=self.pushed,
            pushed_branch=self.pushed_as,
            tasks=list(self.tasks),
            approve=list(self.approve),
            overlaps=list(self.overlaps),
            saving=bool(self.received),
            pushing=self.push_wanted,
            pull_request=self.pull.view() if self.pull else None,
            pull_request_problem=self.pull.problem if self.pull else None,
            pull_request_waits=bool(self.pull and (self.pull.wanted or self.pull.merge_wanted)),
        )


_VIEW_FIELDS: Final = (
    "project",
    "id",
    "repository",
    "branch",
    "base",
    "state",
    "base_commit",
    "commit",
    "ticket",
    "created_at",
    "updated_at",
    "problem",
    "diff",
    "bundle",
)
"""The fields of a record that its view has under the same names."""


def branch_id(repository: str, branch: str) -> str:
    """The id of a branch in its project."""
    return "br-" + sha256(b"\0".join((repository.encode(), branch.encode()))).hexdigest()[:_ID_DIGITS]


def repository_key(repository: Repository) -> str:
    """The name under which tasks and branches of a project share a repository: its URL, or the label of a local one."""
    return repository.shown.removesuffix("/").removesuffix(".git") if repository.url else repository.shown
