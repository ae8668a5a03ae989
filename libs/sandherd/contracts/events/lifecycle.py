"""What the spawner says of tasks, sandboxes and branches."""

from typing import Any, ClassVar

from pydantic import Field

from sandherd.contracts.events.base import EventData
from sandherd.contracts.names import SafeName
from sandherd.contracts.quantities import Attempt, Count, Milliseconds, Moment, Seconds, Whole


class SpawnerEvent(EventData):
    """Said by the spawner; none of it is work of an agent."""

    counts_as_work: ClassVar[bool] = False


class TaskEvent(SpawnerEvent):
    """About a task's attempt."""

    attempt: Attempt = 1


class TaskSubmitted(TaskEvent):
    """A task was taken and waits."""

    type: ClassVar[str] = "task.submitted"
    task: str
    harness: str
    runtime: str
    priority: str | None = None
    submitted_by: str | None = None


class TaskRejected(TaskEvent):
    """A task was not taken."""

    type: ClassVar[str] = "task.rejected"
    reason: str
    field: str | None = None


class TaskAssigned(TaskEvent):
    """A sandbox is being made for the task."""

    type: ClassVar[str] = "task.assigned"
    sandbox: SafeName
    waited_ms: Milliseconds = 0


class TaskRunning(TaskEvent):
    """The agent has started."""

    type: ClassVar[str] = "task.running"
    sandbox: SafeName
    started_ms: Milliseconds = 0
    """From submission to `agent.started`."""


class TaskCompleted(TaskEvent):
    """The task is done."""

    type: ClassVar[str] = "task.completed"
    sandbox: SafeName
    result: dict[str, Any] = Field(default_factory=dict)


class TaskFailed(TaskEvent):
    """The task is not done and will not be tried again by itself."""

    type: ClassVar[str] = "task.failed"
    sandbox: SafeName | None = None
    error: str
    error_type: str


class TaskCancelled(TaskEvent):
    """Somebody called the task off."""

    type: ClassVar[str] = "task.cancelled"
    sandbox: SafeName | None = None
    reason: str = ""
    cancelled_by: str | None = None


class TaskRetryScheduled(TaskEvent):
    """Another attempt will be made."""

    type: ClassVar[str] = "task.retry_scheduled"
    not_before: Moment
    error: str


class TaskTimedOut(TaskEvent):
    """The attempt took longer than it may."""

    type: ClassVar[str] = "task.timed_out"
    limit_seconds: Seconds


class SandboxEvent(SpawnerEvent):
    """About a sandbox."""

    runtime: str


class SandboxRequested(SandboxEvent):
    """A sandbox is wanted; written down before its provider is asked."""

    type: ClassVar[str] = "sandbox.requested"
    linger_seconds: Seconds = 0
    """How long it stays for messages after its agent has ended."""


class SandboxSpawned(SandboxEvent):
    """The provider has made it."""

    type: ClassVar[str] = "sandbox.spawned"
    spawn_ms: Milliseconds = 0
    isolation: str | None = None


class SandboxRunning(SandboxEvent):
    """Its worker has spoken."""

    type: ClassVar[str] = "sandbox.running"


class SandboxPaused(SandboxEvent):
    """It is frozen."""

    type: ClassVar[str] = "sandbox.paused"


class SandboxResumed(SandboxEvent):
    """It goes on."""

    type: ClassVar[str] = "sandbox.resumed"


class SandboxStopping(SandboxEvent):
    """It is being ended."""

    type: ClassVar[str] = "sandbox.stopping"
    reason: str


class SandboxTerminated(SandboxEvent):
    """It is gone, and with it all its processes."""

    type: ClassVar[str] = "sandbox.terminated"
    reason: str
    lived_seconds: Seconds = 0
    exit_code: Whole | None = None
    unsaid: bool = False
    """Whether something that its agent had said could not be published by then."""


class SandboxFailed(SandboxEvent):
    """It could not be made, or was lost."""

    type: ClassVar[str] = "sandbox.failed"
    error: str
    error_type: str


class SandboxOrphanFound(SandboxEvent):
    """A provider has something that no record wants."""

    type: ClassVar[str] = "sandbox.orphan_found"


class SandboxOrphanRemoved(SandboxEvent):
    """An orphan was removed."""

    type: ClassVar[str] = "sandbox.orphan_removed"


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
