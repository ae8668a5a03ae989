"""Events of the spawner about the branches that tasks work on."""

from typing import Annotated, ClassVar, Final

from pydantic import ConfigDict, Field

from sandherd.contracts.events.base import ArtifactRef, SpawnerEvent, Tone
from sandherd.contracts.model import Count, Model
from sandherd.contracts.pull_requests import PullRequestView
from sandherd.contracts.states import BranchState, State
from sandherd.plurals import pluralize

MAX_PATHS: Final = 100
"""Maximum number of paths in an event about a branch."""
MAX_OVERLAPS: Final = 20
"""Maximum number of branches with which a branch is merged on trial."""
Paths = Annotated[list[str], Field(max_length=MAX_PATHS)]


class BranchEvent(SpawnerEvent):
    """An event about a task's branch."""

    repository: str
    branch: str


class BranchCreated(BranchEvent):
    """The branch was created in the spawner's mirror of the repository, before its sandbox."""

    type: ClassVar[str] = "branch.created"
    sets_state: ClassVar[State | None] = BranchState.LIVE
    base: str
    base_commit: str | None = None
    """The commit of the base from which the branch was created."""
    ticket: str | None = None
    """The ticket that the task works on."""

    def summarize(self) -> str:
        return f"{self.branch} from {self.base}" + (f" at {self.base_commit[:10]}" if self.base_commit else "")


class BranchSaved(BranchEvent):
    """Commits of a sandbox were checked and added to the branch in the spawner's mirror."""

    type: ClassVar[str] = "branch.saved"
    tone: ClassVar[Tone | None] = "success"
    commit: str
    """The branch's new commit."""
    commits: Count
    """Number of commits of the branch that its base's commit does not have."""
    files_changed: Count
    """Number of files that differ from the base's commit."""
    additions: Count
    """Number of lines added since the base's commit."""
    deletions: Count
    """Number of lines removed since the base's commit."""
    paths: Paths = Field(default_factory=list)
    """The changed paths; at most the first 100."""
    diff: ArtifactRef | None = None
    """The diff from the base's commit, made by the spawner, not by the sandbox. None: the diff is too large."""

    def summarize(self) -> str:
        size = f"{pluralize(self.files_changed, 'file')}, +{self.additions} -{self.deletions}"
        return f"{self.branch} {self.commit[:10]}: {pluralize(self.commits, 'commit')}, {size}"


class BranchOverlap(Model):
    """Another branch, with which the branch can't be merged as it is."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    branch: str
    """The other branch: its base, or a live branch of the same repository and project."""
    paths: Paths
    """The paths that both branches change in conflicting ways; at most the first 20."""


class BranchOverlapFound(BranchEvent):
    """Trial merges of a branch's new commit found other conflicts than those of the previous commit."""

    type: ClassVar[str] = "branch.overlap_found"
    tone: ClassVar[Tone | None] = "attention"
    commit: str
    overlaps: Annotated[list[BranchOverlap], Field(max_length=MAX_OVERLAPS)]
    """The branches that it conflicts with. Empty: it no longer conflicts with any branch."""

    def summarize(self) -> str:
        pairs = (f"{other.branch} in {', '.join(other.paths[:3])}" for other in self.overlaps)
        return f"{self.branch} conflicts with {'; '.join(pairs) or 'no branch any more'}"


class BranchRefused(BranchEvent):
    """Commits that a sandbox saved for the branch were refused, and are not part of the branch."""

    type: ClassVar[str] = "branch.refused"
    tone: ClassVar[Tone | None] = "failure"
    reason: str
    """The reason, as text for users."""

    def summarize(self) -> str:
        return f"{self.branch}: {self.reason}"


class BranchPushed(BranchEvent):
    """The branch was pushed to the repository."""

    type: ClassVar[str] = "branch.pushed"
    tone: ClassVar[Tone | None] = "success"
    commit: str
    """The present commit of the branch in the repository."""
    pushed_branch: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """The name of the branch in the repository, if it differs: the repository already had a branch of this name."""

    def summarize(self) -> str:
        return f"{self.pushed_branch or self.branch} at {self.commit[:10]}"


class BranchPushRefused(BranchEvent):
    """The branch can't be pushed until a user has removed the cause."""

    type: ClassVar[str] = "branch.push_refused"
    tone: ClassVar[Tone | None] = "failure"
    commit: str
    """The commit that was not pushed."""
    reason: str
    """The reason, as text for users."""
    code: str
    """The reason as a code: `denied`, `not_found`, `conflict`, `refused`, `too_large` or `needs_approval`."""
    paths: Paths = Field(default_factory=list)
    """With `needs_approval`: the changed paths that need a user's approval."""

    def summarize(self) -> str:
        return f"{self.branch} at {self.commit[:10]}: {self.reason}"


class PullRequestEvent(BranchEvent):
    """An event about the pull request of a branch."""

    pr_url: str
    pr_number: Count


class BranchPullRequestOpened(PullRequestEvent):
    """A pull request was opened, or found at the forge."""

    type: ClassVar[str] = "branch.pull_request_opened"
    tone: ClassVar[Tone | None] = "success"
    commit: str | None = None
    """The branch's commit."""
    draft: bool = Field(default=False, exclude_if=lambda draft: not draft)
    """Whether it is not ready for review yet."""

    def summarize(self) -> str:
        return f"{self.branch}: #{self.pr_number}{' (draft)' if self.draft else ''} {self.pr_url}"


class BranchPullRequestUpdated(PullRequestEvent):
    """The pull request has another commit, or another state at its forge."""

    type: ClassVar[str] = "branch.pull_request_updated"
    pull_request: PullRequestView
    """The pull request as it is now."""

    def summarize(self) -> str:
        now = self.pull_request
        state = f"checks {now.checks}, reviews {now.reviews}, mergeable {now.mergeable}"
        return f"{self.branch}: #{self.pr_number} {state}{f' ({now.obstacle})' if now.obstacle else ''}"


class BranchPullRequestClosed(PullRequestEvent):
    """A user closed the pull request without a merge."""

    type: ClassVar[str] = "branch.pull_request_closed"
    tone: ClassVar[Tone | None] = "attention"

    def summarize(self) -> str:
        return f"{self.branch}: #{self.pr_number}"


class BranchPullRequestRefused(BranchEvent):
    """The forge refused a step of a pull request. It is not repeated before a new commit or a user's request."""

    type: ClassVar[str] = "branch.pull_request_refused"
    tone: ClassVar[Tone | None] = "failure"
    commit: str
    """The branch's commit."""
    step: str
    """The refused step: `open_pull_request`, `mark_ready`, `poll_pull_request`, `merge`, `find_conflict` or
    `follow_up`."""
    reason: str
    """The reason, as text for users."""
    code: str
    """The reason as a code: a fault (`denied`, `not_found`, `conflict`, `refused`), or the obstacle to a merge."""

    def summarize(self) -> str:
        return f"{self.branch} at {self.commit[:10]}: {self.step}: {self.reason}"


class BranchMerged(BranchEvent):
    """The branch was merged."""

    type: ClassVar[str] = "branch.merged"
    tone: ClassVar[Tone | None] = "success"
    sets_state: ClassVar[State | None] = BranchState.MERGED
    commit: str
    """The commit that merged it."""
    pr_number: Count | None = None
    """The number of the branch's pull request."""

    def summarize(self) -> str:
        return f"{self.branch} at {self.commit[:10]}"


class BranchConflicted(BranchEvent):
    """The branch has conflicts and can't be merged as it is."""

    type: ClassVar[str] = "branch.conflicted"
    tone: ClassVar[Tone | None] = "attention"
    files: list[str] = Field(default_factory=list)
    commit: str | None = None
    """The branch's commit that conflicts."""
    base: str | None = None
    """The branch that it conflicts with."""

    def summarize(self) -> str:
        return f"{self.branch} in {', '.join(self.files[:3]) or 'files that are not known'}"


class BranchDeleted(BranchEvent):
    """The branch was deleted."""

    type: ClassVar[str] = "branch.deleted"
    sets_state: ClassVar[State | None] = BranchState.DELETED
    closes_source: ClassVar[bool] = True
