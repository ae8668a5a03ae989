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

_DIGITS: Final = 20


class ReceivedCommits(BaseModel):
    """A bundle that a sandbox saved, and that is not a part of the branch yet."""

    model_config = ConfigDict(frozen=True)

    sandbox: SafeName
    task: SafeName
    commit: str
    bundle: ArtifactRef
    partial: bool = False
    """Whether the bundle has only what comes after the branch as it was: it is of a push, and not of a save."""


class SignedCommits(BaseModel):
    """What the spawner has made of a bundle: by signing its commits, or by adding what a partial one leaves out."""

    model_config = ConfigDict(frozen=True)

    commit: str
    bundle: ArtifactRef


class BranchSize(BaseModel):
    """How much a branch differs from its base's commit."""

    model_config = ConfigDict(frozen=True)

    commits: int = 0
    files_changed: int = 0
    additions: int = 0
    deletions: int = 0


class BranchRecord(Record):
    """A branch: where it begins, what was saved of it, and what was pushed. It is of one repository of one project."""

    id: SafeName
    life: str
    """32 hexadecimal digits, of the task that it was created for: distinguishes it from a later one of the same name.
    """
    tasks: tuple[SafeName, ...]
    """The tasks that worked on it, the last one last. There is at least one."""
    repository: str
    """The name under which tasks share the repository: the URL without `.git`, or the label of a local one."""
    url: str | None = None
    origin: ArtifactRef | None = None
    """The bundle with the base of a local repository, as uploaded last. None: the repository has a URL."""
    branch: str
    base: str
    base_commit: str
    commit: str
    """The branch's commit. The mirror may be one step ahead of it after a crash."""
    unsigned: str | None = None
    """The commit of a sandbox that `commit` was made of, if the spawner has signed that."""
    pushed: str | None = None
    """The commit that was pushed last."""
    tried: str | None = None
    """The commit whose first push was begun: a repository that has it as this branch got it from here."""
    tried_before: tuple[str, ...] = ()
    """Commits whose first push was begun earlier: the git of a spawner that was killed may still complete it."""
    pushed_as: str | None = None
    """The name of the repository's branch, if that of the same name is not this one."""
    bundle: ArtifactRef | None = None
    """The commits since the base's commit."""
    diff: ArtifactRef | None = None
    size: BranchSize = BranchSize()
    ticket: str | None = None
    state: BranchState = BranchState.LIVE
    push: bool = True
    """Whether it is pushed whenever commits are saved, as the task chose that began to work on it last."""
    overlaps: tuple[BranchOverlap, ...] = ()
    """The branches that it conflicts with, by trial merges of `merged_on_trial`."""
    merged_on_trial: str | None = None
    """The commit that was last merged with other branches on trial."""
    objects_in: tuple[ReceivedCommits, ...] = ()
    """The bundles with objects of Git LFS that are not uploaded yet, of each sandbox the last one that has any."""
    received: tuple[ReceivedCommits, ...] = ()
    """Bundles to be checked and added, in their order."""
    push_wanted: bool = False
    delete_wanted: Literal["everywhere", "here"] | None = None
    approve: tuple[str, ...] = ()
    """Changed paths that a user has to approve before it is pushed."""
    approved: str | None = None
    """The commit whose paths a user has approved."""
    approved_paths: tuple[str, ...] = ()
    """The paths that were shown to that user."""
    problem: str | None = None
    """Why the last commits were refused or not pushed."""
    pull_options: PullRequestOptions | None = None
    """What the last task with such options wants of its pull request."""
    pull: PullRequestRecord | None = None
    """Its pull request, once one is wanted."""
    created_at: AwareDatetime
    updated_at: AwareDatetime

    @property
    def name(self) -> str:
        """The task that worked on it last: its events are about that task."""
        return self.tasks[-1]

    @property
    def remote_branch(self) -> str:
        """The name of the repository's branch."""
        return self.pushed_as or self.branch

    @property
    def tries(self) -> frozenset[str]:
        """The commits whose first push was begun."""
        return frozenset({*self.tried_before, *([self.tried] if self.tried else [])})

    @property
    def key(self) -> str:
        """Its key in the bucket."""
        return f"{self.project}.{self.id}"

    @property
    def source(self) -> str:
        """The source of its events."""
        return f"/sandherd/spawner/{self.id}/{self.life}"

    @property
    def local(self) -> bool:
        """Whether its repository is a local one of a client."""
        return self.origin is not None

    @property
    def has_work(self) -> bool:
        """Whether something is to be done about it."""
        return bool(self.received or self.push_wanted or self.delete_wanted) or self.has_trials

    @property
    def has_trials(self) -> bool:
        """Whether its commit is to be merged with other branches on trial."""
        unsaved = self.commit == self.base_commit
        return self.state is BranchState.LIVE and not unsaved and self.merged_on_trial != self.commit

    def event_ids(self) -> dict[str, str | None]:
        """The task that worked on it last."""
        return {"taskid": self.name, "sandboxid": None}

    def entering(self, state: BranchState, **changes: Any) -> Self:
        """The record in another state. Raises `TransitionRefusedError` if the transition is not allowed."""
        check_transition(self.state, state)
        return self.model_copy(update={"state": state, **changes})

    def view(self) -> BranchView:
        """The branch as clients see it."""
        return BranchView(
            **{name: getattr(self, name) for name in _SHOWN},
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


_SHOWN: Final = (
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
"""The fields of a record that its view has, too."""


def branch_id(repository: str, branch: str) -> str:
    """The id of a branch in its project."""
    return "br-" + sha256(b"\0".join((repository.encode(), branch.encode()))).hexdigest()[:_DIGITS]


def repository_key(repository: Repository) -> str:
    """The name under which tasks and branches of a project share a repository: its URL, or the label of a local one."""
    return repository.shown.removesuffix("/").removesuffix(".git") if repository.url else repository.shown
