"""What the spawner says of tasks, sandboxes and branches."""

from typing import Any, ClassVar

from pydantic import Field

from sandherd.contracts.events.base import EventData
from sandherd.contracts.names import SafeName
from sandherd.contracts.quantities import Attempt, Milliseconds, Moment, Seconds, Whole


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
    depends_on: list[str] = Field(default_factory=list)
    deadline: Moment | None = None
    max_attempts: Attempt | None = None
    profile: SafeName | None = None
    resumes: SafeName | None = None
    """The earlier task from whose session it goes on."""


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
    """An attempt has failed and another will be made; `attempt` is the one that failed."""

    type: ClassVar[str] = "task.retry_scheduled"
    not_before: Moment
    error: str
    error_type: str | None = None
    sandbox: SafeName | None = None
    requested_by: str | None = None
    """Who asked for it, if it was not the rule."""


class TaskTimedOut(TaskEvent):
    """The attempt took longer than it may."""

    type: ClassVar[str] = "task.timed_out"
    limit_seconds: Seconds
    whole_task: bool = False
    """Whether it is the limit of the task with all its attempts, and not of this attempt."""


class SandboxEvent(SpawnerEvent):
    """About a sandbox."""

    runtime: str


class SandboxRequested(SandboxEvent):
    """A sandbox is wanted; written down before its provider is asked."""

    type: ClassVar[str] = "sandbox.requested"
    linger_seconds: Seconds = 0
    """How long it stays for messages after its agent has ended."""
    expires_at: Moment | None = None
    """When its time to live is over, unless it is extended."""
    profile: SafeName | None = None
    requested_by: str | None = None


class SandboxSpawned(SandboxEvent):
    """The provider has made it."""

    type: ClassVar[str] = "sandbox.spawned"
    spawn_ms: Milliseconds = 0
    isolation: str | None = None
    warm: bool = False
    """Whether it was taken from the pool of those that are started beforehand."""


class SandboxRunning(SandboxEvent):
    """Its worker has spoken."""

    type: ClassVar[str] = "sandbox.running"


class SandboxPaused(SandboxEvent):
    """It is frozen."""

    type: ClassVar[str] = "sandbox.paused"
    reason: str = ""


class SandboxResumed(SandboxEvent):
    """It goes on."""

    type: ClassVar[str] = "sandbox.resumed"


class SandboxExtended(SandboxEvent):
    """It may live longer."""

    type: ClassVar[str] = "sandbox.extended"
    expires_at: Moment


class SandboxRefused(SpawnerEvent):
    """What was asked of it was not done, and never will be."""

    type: ClassVar[str] = "sandbox.refused"
    command: str
    """The command's type."""
    reason: str
    field: str | None = None


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
