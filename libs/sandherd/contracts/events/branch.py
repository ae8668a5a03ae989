"""Events of the spawner about branches."""

from typing import ClassVar

from pydantic import Field

from sandherd.contracts.events.base import SpawnerEvent
from sandherd.contracts.model import Count


class BranchEvent(SpawnerEvent):
    """About a task's branch."""

    reserved: ClassVar[bool] = True
    repository: str
    branch: str


class BranchCreated(BranchEvent):
    """The branch was created, before its sandbox."""

    type: ClassVar[str] = "branch.created"
    base: str


class BranchPullRequestOpened(BranchEvent):
    """A pull request was opened."""

    type: ClassVar[str] = "branch.pull_request_opened"
    pr_url: str
    pr_number: Count


class BranchMerged(BranchEvent):
    """The branch was merged."""

    type: ClassVar[str] = "branch.merged"
    commit: str


class BranchConflicted(BranchEvent):
    """The branch has conflicts and can't be merged as it is."""

    type: ClassVar[str] = "branch.conflicted"
    files: list[str] = Field(default_factory=list)


class BranchDeleted(BranchEvent):
    """The branch was deleted."""

    type: ClassVar[str] = "branch.deleted"
