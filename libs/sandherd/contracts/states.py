"""The states of tasks, sandboxes, messages and approvals, and every transition between them that is allowed."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import Final, Literal, TypeVar

SteeringStep = Literal["observe", "nudge", "interrupt", "pause", "terminate"]
"""The steps of the intervention ladder, weakest first. `observe` publishes findings only."""


class NotificationKind(StrEnum):
    """The kinds of events that the monitor notifies users of."""

    RECOVERY = "recovery"
    """An attempt failed, and the task is retried automatically."""
    INTERVENTION_FAILED = "intervention_failed"
    """An agent ignored the guardian's message, or could not be reached."""
    COORDINATION = "coordination"
    """Two sandboxes hinder each other, and a user is asked which one is to continue (`SANDHERD_CONDUCTOR`)."""


class TaskState(StrEnum):
    """The states of a task."""

    PENDING = "pending"
    ASSIGNED = "assigned"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class SandboxState(StrEnum):
    """The states of a sandbox."""

    REQUESTED = "requested"
    SPAWNING = "spawning"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    TERMINATED = "terminated"
    FAILED = "failed"


class MessageState(StrEnum):
    """The states of a message to an agent."""

    QUEUED = "queued"
    DELIVERED = "delivered"
    ACKNOWLEDGED = "acknowledged"
    EXPIRED = "expired"
    REJECTED = "rejected"


class ApprovalState(StrEnum):
    """The states of an approval."""

    PENDING = "pending"
    GRANTED = "granted"
    DENIED = "denied"
    EXPIRED = "expired"


class BranchState(StrEnum):
    """The states of a branch that tasks work on."""

    LIVE = "live"
    MERGED = "merged"
    DELETED = "deleted"


State = TaskState | SandboxState | MessageState | ApprovalState | BranchState
StateT = TypeVar("StateT", TaskState, SandboxState, MessageState, ApprovalState, BranchState)

TASK_TRANSITIONS: Final[frozenset[tuple[TaskState, TaskState]]] = frozenset(
    {
        (TaskState.PENDING, TaskState.ASSIGNED),
        (TaskState.PENDING, TaskState.CANCELLED),
        (TaskState.PENDING, TaskState.FAILED),
        (TaskState.ASSIGNED, TaskState.RUNNING),
        (TaskState.ASSIGNED, TaskState.COMPLETED),
        (TaskState.ASSIGNED, TaskState.FAILED),
        (TaskState.ASSIGNED, TaskState.CANCELLED),
        (TaskState.RUNNING, TaskState.COMPLETED),
        (TaskState.RUNNING, TaskState.FAILED),
        (TaskState.RUNNING, TaskState.CANCELLED),
        (TaskState.FAILED, TaskState.PENDING),
        (TaskState.CANCELLED, TaskState.PENDING),
    }
)
"""`failed → pending` is a retry: a new attempt in a new sandbox. So is `cancelled → pending`, which happens only at a
user's request.

`assigned → completed` is allowed because events may be stored out of order: the end of a short agent may be read before
its start.
"""

SANDBOX_TRANSITIONS: Final[frozenset[tuple[SandboxState, SandboxState]]] = frozenset(
    {
        (SandboxState.REQUESTED, SandboxState.SPAWNING),
        (SandboxState.REQUESTED, SandboxState.STOPPING),
        (SandboxState.REQUESTED, SandboxState.FAILED),
        (SandboxState.SPAWNING, SandboxState.RUNNING),
        (SandboxState.SPAWNING, SandboxState.STOPPING),
        (SandboxState.SPAWNING, SandboxState.FAILED),
        (SandboxState.RUNNING, SandboxState.PAUSED),
        (SandboxState.RUNNING, SandboxState.STOPPING),
        (SandboxState.RUNNING, SandboxState.FAILED),
        (SandboxState.PAUSED, SandboxState.RUNNING),
        (SandboxState.PAUSED, SandboxState.STOPPING),
        (SandboxState.STOPPING, SandboxState.TERMINATED),
    }
)

MESSAGE_TRANSITIONS: Final[frozenset[tuple[MessageState, MessageState]]] = frozenset(
    {
        (MessageState.QUEUED, MessageState.DELIVERED),
        (MessageState.QUEUED, MessageState.EXPIRED),
        (MessageState.QUEUED, MessageState.REJECTED),
        (MessageState.DELIVERED, MessageState.ACKNOWLEDGED),
        (MessageState.DELIVERED, MessageState.REJECTED),
        (MessageState.DELIVERED, MessageState.EXPIRED),
    }
)

APPROVAL_TRANSITIONS: Final[frozenset[tuple[ApprovalState, ApprovalState]]] = frozenset(
    (ApprovalState.PENDING, after) for after in ApprovalState if after is not ApprovalState.PENDING
)
"""The first answer counts, or the timeout if it comes first."""

BRANCH_TRANSITIONS: Final[frozenset[tuple[BranchState, BranchState]]] = frozenset(
    {
        (BranchState.LIVE, BranchState.MERGED),
        (BranchState.LIVE, BranchState.DELETED),
        (BranchState.MERGED, BranchState.DELETED),
    }
)

ALLOWED: Final[Mapping[type[State], AbstractSet[tuple[State, State]]]] = {
    TaskState: TASK_TRANSITIONS,
    SandboxState: SANDBOX_TRANSITIONS,
    MessageState: MESSAGE_TRANSITIONS,
    ApprovalState: APPROVAL_TRANSITIONS,
    BranchState: BRANCH_TRANSITIONS,
}
"""The allowed transitions, by the class of the state. One table for all would be wrong: states of different classes
with the same value are equal."""

TASK_ENDED: Final = frozenset({TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED})
SANDBOX_ENDED: Final = frozenset({SandboxState.TERMINATED, SandboxState.FAILED})
SANDBOX_ENDING: Final = SANDBOX_ENDED | {SandboxState.STOPPING}


class TransitionRefusedError(ValueError):
    """A transition that is not in the table. It is counted, logged and never stored."""

    def __init__(self, before: State, after: State) -> None:
        super().__init__(f"{type(before).__name__}: {before} → {after} is not an allowed transition")
        self.before = before
        self.after = after


def check_transition(before: StateT, after: StateT) -> None:
    """Raise `TransitionRefusedError` unless the transition `before → after` is in the table for its class."""
    if type(before) is not type(after) or (before, after) not in ALLOWED[type(before)]:
        raise TransitionRefusedError(before, after)
