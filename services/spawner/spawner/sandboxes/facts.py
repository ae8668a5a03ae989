"""What is decided from about one sandbox: its record, its task, what is really there, and the times it is led by."""

from dataclasses import dataclass
from datetime import datetime

from spawner.runtimes.contract import Seen
from spawner.sandboxes.record import SandboxRecord
from spawner.tasks.record import TaskRecord


@dataclass(frozen=True)
class Rules:
    """The times that a sandbox is led by, in seconds, and how often a recovery is tried."""

    spawn_timeout: float = 60.0
    call_timeout: float = 60.0
    """How long an answer of a runtime is waited for; then it counts as unavailable."""
    recovery_timeout: float = 60.0
    most_recoveries: int = 5


@dataclass(frozen=True)
class Facts:
    """All that the decision is made from. `settled`: every agent event that the broker has was taken in."""

    sandbox: SandboxRecord
    task: TaskRecord | None
    seen: Seen | None
    now: datetime
    settled: bool = False
    leading_since: datetime | None = None
    """Since when somebody is there to lead it: no deadline runs while there is no spawner."""

    @property
    def alone(self) -> bool:
        """Whether it was asked for by itself, without a task."""
        return self.sandbox.task is None

    @property
    def current(self) -> bool:
        """Whether the task's current attempt is in this sandbox."""
        return self.task is not None and self.task.sandbox == self.sandbox.sandbox

    @property
    def working(self) -> bool:
        """Whether a task waits for what is done here."""
        return self.current and self.task is not None and not self.task.ended

    @property
    def expired(self) -> bool:
        """Whether its time to live is over."""
        return self.sandbox.expires_at is not None and self.now >= self.sandbox.expires_at

    def since(self, moment: datetime) -> datetime:
        """When a deadline that was set at this moment began to run."""
        return max(moment, self.leading_since or moment)
