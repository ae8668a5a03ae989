"""What the spawner says of branches."""

from typing import ClassVar

from pydantic import Field

from sandherd.contracts.events.lifecycle import SpawnerEvent
from sandherd.contracts.quantities import Count


class BranchEvent(SpawnerEvent):
    """About a task's branch."""

    repository: str
    branch: str


class BranchCreated(BranchEvent):
    """The branch was made, before its sandbox."""

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
    """The branch can't be merged as it is."""

    type: ClassVar[str] = "branch.conflicted"
    files: list[str] = Field(default_factory=list)


class BranchDeleted(BranchEvent):
    """The branch is gone."""

    type: ClassVar[str] = "branch.deleted"
