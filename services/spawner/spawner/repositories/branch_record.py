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
    """A bundle with commits that a sandbox saved or pushed."""

    model_config = ConfigDict(frozen=True)

    sandbox: SafeName
    task: SafeName
    commit: str
    bundle: ArtifactRef
    partial: bool = False
    """Whether the bundle has only the commits after the branch's commit at that time: it is from a push, not a save."""


class SignedCommits(BaseModel):
    """What the spawner stores in place of a bundle: with signed commits, or with those that a partial bundle omits."""

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
    """32 hexadecimal digits of the task that it was created for. They distinguish it from a later branch of its name.
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
    """The sandbox's commit of which `commit` is the signed one; None if it was not signed."""
    pushed: str | None = None
    """The commit that was pushed last."""
    tried: str | None = None
    """The commit whose first push was begun: if the repository's branch has this commit, the spawner pushed it."""
    tried_before: tuple[str, ...] = ()
    """Commits whose first push was begun earlier: the git of a spawner that was killed may still complete it."""
    pushed_as: str | None = None
    """The name of the repository's branch, if `branch` collides with another branch of the repository."""
    bundle: ArtifactRef | None = None
    """The commits since the base's commit."""
    diff: ArtifactRef | None = None
    size: BranchSize = BranchSize()
    ticket: str | None = None
    state: BranchState = BranchState.LIVE
    push: bool = True
    """Whether it is pushed whenever commits are saved. The task that began to work on it last has chosen this."""
    overlaps: tuple[BranchOverlap, ...] = ()
    """The branches that it conflicts with, found by trial merges of the commit `merged_on_trial`."""
    merged_on_trial: str | None = None
    """The commit that was last merged with other branches on trial."""
    objects_in: tuple[ReceivedCommits, ...] = ()
    """The bundles with objects of Git LFS that are not uploaded yet: the last such bundle of each sandbox."""
    received: tuple[ReceivedCommits, ...] = ()
    """Bundles to be checked and added, in this order."""
    push_wanted: bool = False
    delete_wanted: Literal["everywhere", "here"] | None = None
    approve: tuple[str, ...] = ()
    """Changed paths that a user has to approve before it is pushed."""
    approved: str | None = None
    """The commit whose paths a user has approved."""
    approved_paths: tuple[str, ...] = ()
    """The paths that the user has approved with `approved`."""
    problem: str | None = None
    """Why the last commits were refused or not pushed."""
    pull_options: PullRequestOptions | None = None
    """The options of its pull request, from the last task that has such options."""
    pull: PullRequestRecord | None = None
    """Its pull request; None until one is wanted."""
    created_at: AwareDatetime
    updated_at: AwareDatetime

    @property
    def name(self) -> str:
        """The task that worked on it last: its events are about that task."""
        return self.tasks[-1]

    @property
    def remote_branch(self) -> str:
        """The name of this branch in its repository."""
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
        """Whether a step is due for it."""
        return bool(self.received or self.push_wanted or self.delete_wanted) or self.has_trials

    @property
    def has_trials(self) -> bool:
        """Whether its commit is to be merged with other branches on trial."""
        unsaved = self.commit == self.base_commit
        return self.state is BranchState.LIVE and not unsaved and self.merged_on_trial != self.commit

    def event_ids(self) -> dict[str, str | None]:
        """The ids in its events: the task that worked on it last."""
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
"""The fields of a record that its view has under the same names."""


def branch_id(repository: str, branch: str) -> str:
    """The id of a branch in its project."""
    return "br-" + sha256(b"\0".join((repository.encode(), branch.encode()))).hexdigest()[:_DIGITS]


def repository_key(repository: Repository) -> str:
    """The name under which tasks and branches of a project share a repository: its URL, or the label of a local one."""
    return repository.shown.removesuffix("/").removesuffix(".git") if repository.url else repository.shown
