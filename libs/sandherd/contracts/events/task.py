"""Events of the spawner about tasks."""

from typing import Any, ClassVar

from pydantic import Field

from sandherd.contracts.events.base import ArtifactRef, CommandRefusal, SpawnerEvent, Tone
from sandherd.contracts.events.summaries import local_time
from sandherd.contracts.labels import Selector
from sandherd.contracts.model import Attempt, Milliseconds, Moment, Seconds
from sandherd.contracts.names import SafeName
from sandherd.contracts.states import State, TaskState


class TaskEvent(SpawnerEvent):
    """An event about an attempt of a task."""

    attempt: Attempt = 1


class TaskSubmitted(TaskEvent):
    """A task was accepted and waits."""

    type: ClassVar[str] = "task.submitted"
    sets_state: ClassVar[State | None] = TaskState.PENDING
    milestone: ClassVar[bool] = True
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
    """The earlier task whose session it continues."""
    work: ArtifactRef | None = Field(default=None, exclude_if=lambda work: work is None)
    """The archive of the files that the task begins with, stored under the task's name."""
    repository: str | None = Field(default=None, exclude_if=lambda repository: repository is None)
    """The git repository that the task works on: its URL, or the label of a local repository."""
    labels: Selector = Field(default_factory=dict, exclude_if=lambda labels: not labels)
    """Its labels, by key."""

    def summarize(self) -> str:
        return self.task


class TaskRejected(TaskEvent):
    """A submitted task was not accepted, and does not exist."""

    type: ClassVar[str] = "task.rejected"
    closes_source: ClassVar[bool] = True
    tone: ClassVar[Tone | None] = "failure"
    reason: str
    field: str | None = None
    code: str | None = None
    """The reason as a code of `contracts.errors`."""
    command_id: str | None = None
    """The `id` of the command that submitted it."""

    def summarize(self) -> str:
        return self.reason


class TaskRefused(CommandRefusal, SpawnerEvent):
    """A command about a task was rejected, and will never be carried out.

    An existing task of that name has not changed.
    """

    type: ClassVar[str] = "task.refused"
    closes_source: ClassVar[bool] = True


class TaskAssigned(TaskEvent):
    """A sandbox is being created for the task."""

    type: ClassVar[str] = "task.assigned"
    sets_state: ClassVar[State | None] = TaskState.ASSIGNED
    sandbox: SafeName
    waited_ms: Milliseconds = 0

    def summarize(self) -> str:
        return f"to {self.sandbox} after {self.waited_ms:.0f} ms"


class TaskRunning(TaskEvent):
    """The agent has started."""

    type: ClassVar[str] = "task.running"
    sets_state: ClassVar[State | None] = TaskState.RUNNING
    milestone: ClassVar[bool] = True
    sandbox: SafeName
    started_ms: Milliseconds = 0
    """Milliseconds from the submission to `agent.started`."""

    def summarize(self) -> str:
        return f"in {self.sandbox}, {self.started_ms:.0f} ms after it was submitted"


class TaskCompleted(TaskEvent):
    """The task is completed."""

    type: ClassVar[str] = "task.completed"
    closes_source: ClassVar[bool] = True
    sets_state: ClassVar[State | None] = TaskState.COMPLETED
    milestone: ClassVar[bool] = True
    tone: ClassVar[Tone | None] = "success"
    sandbox: SafeName
    result: dict[str, Any] = Field(default_factory=dict)

    def summarize(self) -> str:
        return f"by {self.sandbox}"


class TaskFailed(TaskEvent):
    """The task has failed and is not retried automatically."""

    type: ClassVar[str] = "task.failed"
    closes_source: ClassVar[bool] = True
    sets_state: ClassVar[State | None] = TaskState.FAILED
    milestone: ClassVar[bool] = True
    tone: ClassVar[Tone | None] = "failure"
    sandbox: SafeName | None = None
    error: str
    error_type: str

    def summarize(self) -> str:
        return f"{self.error} ({self.error_type})"


class TaskCancelled(TaskEvent):
    """The task was cancelled on request."""

    type: ClassVar[str] = "task.cancelled"
    closes_source: ClassVar[bool] = True
    sets_state: ClassVar[State | None] = TaskState.CANCELLED
    milestone: ClassVar[bool] = True
    sandbox: SafeName | None = None
    reason: str = ""
    cancelled_by: str | None = None

    def summarize(self) -> str:
        return self.reason


class TaskRetryScheduled(TaskEvent):
    """An attempt has failed and another one follows; `attempt` is the one that failed."""

    type: ClassVar[str] = "task.retry_scheduled"
    sets_state: ClassVar[State | None] = TaskState.PENDING
    tone: ClassVar[Tone | None] = "attention"
    not_before: Moment
    error: str
    error_type: str | None = None
    sandbox: SafeName | None = None
    requested_by: str | None = None
    """Who requested the retry; None if it is automatic."""

    def summarize(self) -> str:
        requester = f", requested by {self.requested_by}" if self.requested_by else ""
        reason = f"{self.error} ({self.error_type})" if self.error_type else self.error
        return f"attempt {self.attempt}: {reason}; retry not before {local_time(self.not_before)}{requester}"


class TaskTimedOut(TaskEvent):
    """The attempt, or the whole task, exceeded its time limit."""

    type: ClassVar[str] = "task.timed_out"
    tone: ClassVar[Tone | None] = "attention"
    limit_seconds: Seconds
    whole_task: bool = False
    """Whether the limit is that of the task with all its attempts; otherwise it is that of this attempt."""

    def summarize(self) -> str:
        return f"{'the task' if self.whole_task else 'this attempt'} took over {self.limit_seconds:.0f} s"
