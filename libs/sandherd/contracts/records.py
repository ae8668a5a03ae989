"""Records in key-value buckets that services other than their owner read.

The spawner writes `tasks` and `sandboxes`, with more fields than these; a field at its default is absent. Others read a
record by `sandherd.bus.kv.read_record`. Golden examples are in `golden/v1/records`.
"""

from typing import ClassVar

from pydantic import AwareDatetime, ConfigDict

from sandherd.contracts.attempt_inputs import Previous
from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.states import TASK_ENDED, SandboxState, TaskState


class SharedRecord(Model):
    """The part of a record that other services read. Its key is `<project>.<name>`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    bucket: ClassVar[str]
    """The bucket that holds it."""


class SharedSandboxRecord(SharedRecord):
    """A sandbox: its state, and the attempt of a task that runs in it."""

    bucket: ClassVar[str] = "sandboxes"

    state: SandboxState = SandboxState.REQUESTED
    task: SafeName | None = None
    """None: it was requested without a task, and no agent runs in it."""
    attempt: int = 1
    unit: SafeName | None = None
    """The name that its runtime uses for it, if that is not its own: a sandbox of the pool had another name before."""
    reason: str | None = None
    """Why it was ended."""
    expires_at: AwareDatetime | None = None
    """When its time to live ends."""


class SharedTaskRecord(SharedRecord):
    """A task: its state, and the sandboxes of its attempts."""

    bucket: ClassVar[str] = "tasks"

    state: TaskState = TaskState.PENDING
    life: str
    """32 hexadecimal digits, derived from the command that submitted it: distinguishes two tasks of the same name."""
    attempt: int = 1
    sandbox: SafeName | None = None
    """The sandbox of the current attempt: events of any other sandbox change nothing."""
    previous: Previous | None = None
    """The previous attempt, and what it stored."""

    @property
    def ended(self) -> bool:
        """Whether it is in a final state, which only a user's request leaves."""
        return self.state in TASK_ENDED

    @property
    def sandboxes(self) -> frozenset[str]:
        """The sandboxes of the current attempt and of the previous one."""
        before = self.previous.sandbox if self.previous else None
        return frozenset(name for name in (self.sandbox, before) if name)


RECORDS: dict[str, type[SharedRecord]] = {"sandbox": SharedSandboxRecord, "task": SharedTaskRecord}
