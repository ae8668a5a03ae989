"""The input of decisions about one sandbox: its record, its task, its observed state, and its timeouts."""

from dataclasses import dataclass
from datetime import datetime

from sandherd.contracts.states import TaskState
from spawner.runtimes.contract import ObservedSandbox
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.tasks.task_record import TaskRecord


@dataclass(frozen=True)
class LifecycleTimeouts:
    """Timeouts of a sandbox's lifecycle, in seconds, and the maximum number of recoveries."""

    spawn_timeout: float = 300.0
    call_timeout: float = 300.0
    """Timeout of a runtime call, after which the runtime counts as unavailable."""
    recovery_timeout: float = 60.0
    max_recoveries: int = 5


@dataclass(frozen=True)
class LifecycleFacts:
    """The input of a decision. `settled` is whether every event of agents in the broker is handled."""

    sandbox: SandboxRecord
    task: TaskRecord | None
    seen: ObservedSandbox | None
    now: datetime
    settled: bool = False
    leading_since: datetime | None = None
    """When this spawner was started: deadlines do not run while there is no spawner."""

    @property
    def alone(self) -> bool:
        """Whether the sandbox was requested without a task."""
        return self.sandbox.task is None

    @property
    def current(self) -> bool:
        """Whether the task's current attempt is in this sandbox."""
        return self.task is not None and self.task.sandbox == self.sandbox.sandbox

    @property
    def begins_later(self) -> bool:
        """Whether the scheduler is between its two writes: the task that needs this sandbox does not name it yet."""
        task = self.task
        return task is not None and task.state is TaskState.PENDING and task.attempt == self.sandbox.attempt

    @property
    def working(self) -> bool:
        """Whether the sandbox has the current attempt of a task that has not ended."""
        return self.current and self.task is not None and not self.task.ended

    @property
    def expired(self) -> bool:
        """Whether the sandbox has expired."""
        return self.sandbox.expires_at is not None and self.now >= self.sandbox.expires_at

    def since(self, moment: datetime) -> datetime:
        """When a deadline that was set at `moment` started to run."""
        return max(moment, self.leading_since or moment)
