"""How a task, a sandbox or a message stands, by what events say of it: the rows of the read tables. Pure.

Each part of a row is the word of the event with the highest `sequence` that speaks of it, or the earliest or greatest
of what was said; all of these give the same whatever comes first and however often.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events.lifecycle import (
    SandboxEvent,
    SandboxExtended,
    SandboxFailed,
    SandboxRequested,
    SandboxSpawned,
    SandboxTerminated,
    TaskFailed,
    TaskRetryScheduled,
    TaskSubmitted,
)
from sandherd.contracts.events.message import MessageQueued
from sandherd.contracts.failures import ErrorType
from sandherd.contracts.states import MessageState, SandboxState, TaskState

if TYPE_CHECKING:
    from event_ingest.approvals import ApprovalRow

TASK_STATES: Final[Mapping[str, TaskState]] = {
    "task.submitted": TaskState.PENDING,
    "task.assigned": TaskState.ASSIGNED,
    "task.running": TaskState.RUNNING,
    "task.completed": TaskState.COMPLETED,
    "task.failed": TaskState.FAILED,
    "task.cancelled": TaskState.CANCELLED,
    "task.retry_scheduled": TaskState.PENDING,
}
SANDBOX_STATES: Final[Mapping[str, SandboxState]] = {
    "sandbox.requested": SandboxState.REQUESTED,
    "sandbox.spawned": SandboxState.SPAWNING,
    "sandbox.running": SandboxState.RUNNING,
    "sandbox.paused": SandboxState.PAUSED,
    "sandbox.resumed": SandboxState.RUNNING,
    "sandbox.stopping": SandboxState.STOPPING,
    "sandbox.terminated": SandboxState.TERMINATED,
    "sandbox.failed": SandboxState.FAILED,
}
_LIFE: Final = re.compile("[0-9a-f]{32}")
MESSAGE_STATES: Final[Mapping[str, MessageState]] = {f"message.{state.value}": state for state in MessageState}


@dataclass(slots=True)
class TaskRow:
    """What a batch says of a task. The fields are the columns, in the order of the statement."""

    project: str
    task: str
    state: str = ""
    state_sequence: int = 0
    state_at: datetime | None = None
    attempt: int = 1
    error: str | None = None
    error_type: str | None = None
    result: str | None = None
    text: str | None = None
    harness: str | None = None
    runtime: str | None = None
    submitted_at: datetime | None = None
    sandbox: str | None = None
    sandbox_sequence: int = 0
    started_at: datetime | None = None
    started_sequence: int = 0
    priority: str | None = None
    deadline: datetime | None = None
    depends_on: str | None = None
    max_attempts: int | None = None
    profile: str | None = None
    not_before: datetime | None = None
    retried_sequence: int = 0
    """Of the last retry: what was said of a sandbox or of a start before that is of another attempt."""
    life: str = ""
    """Which task of this name it is, for names come again: the later one replaces what stands of the earlier."""

    def absorb(self, event: Envelope[Any]) -> None:
        """Take in what a task's event says."""
        data: Any = event.data
        self.submitted_at = earliest(self.submitted_at, event.time)
        if event.sequence > self.state_sequence:
            self._become(event, data)
        if isinstance(data, TaskSubmitted):
            self._begin(data)
        if isinstance(data, TaskRetryScheduled):
            self.retried_sequence = max(self.retried_sequence, event.sequence)
        sandbox = getattr(data, "sandbox", None)
        if sandbox is not None and event.sequence > self.sandbox_sequence:
            self.sandbox, self.sandbox_sequence = sandbox, event.sequence
        if event.type == "task.running" and event.sequence > self.started_sequence:
            self.started_at, self.started_sequence = event.time, event.sequence

    def _begin(self, data: TaskSubmitted) -> None:
        self.text, self.harness, self.runtime = storable(data.task), storable(data.harness), storable(data.runtime)
        self.priority, self.deadline = storable(data.priority), data.deadline
        self.depends_on = json.dumps([storable(name) for name in data.depends_on])
        self.max_attempts, self.profile = data.max_attempts, data.profile

    def _become(self, event: Envelope[Any], data: Any) -> None:
        self.state, self.state_sequence, self.state_at = TASK_STATES[event.type].value, event.sequence, event.time
        # A retry names the attempt that failed; the task waits for the next one.
        self.attempt = data.attempt + 1 if isinstance(data, TaskRetryScheduled) else data.attempt
        self.not_before = getattr(data, "not_before", None)
        failed = isinstance(data, TaskFailed | TaskRetryScheduled)
        self.error = storable(data.error if failed else getattr(data, "reason", None)) or None
        cancelled = ErrorType.CANCELLED if event.type == "task.cancelled" else None
        self.error_type = storable(getattr(data, "error_type", cancelled))
        result = getattr(data, "result", None)
        self.result = None if result is None else json.dumps(result)


@dataclass(slots=True)
class SandboxRow:
    """What a batch says of a sandbox. Its task is the spawner's word, never the agent's."""

    project: str
    sandbox: str
    state: str | None = None
    state_sequence: int = 0
    state_at: datetime | None = None
    runtime: str | None = None
    reason: str | None = None
    error: str | None = None
    task: str | None = None
    attempt: int = 1
    isolation: str | None = None
    requested_at: datetime | None = None
    running_at: datetime | None = None
    unsaid: bool | None = None
    expires_at: datetime | None = None
    expires_sequence: int = 0
    profile: str | None = None
    warm: bool | None = None

    def absorb(self, event: Envelope[Any]) -> None:
        """Take in what a sandbox's event says."""
        data: Any = event.data
        self.requested_at = earliest(self.requested_at, event.time)
        self.belong(event.taskid, 1)
        if event.type in SANDBOX_STATES and event.sequence > self.state_sequence:
            self._become(event, data)
        if isinstance(data, SandboxRequested | SandboxExtended) and event.sequence > self.expires_sequence:
            self.expires_at, self.expires_sequence = data.expires_at, event.sequence
        if isinstance(data, SandboxRequested):
            self.profile = data.profile
        if isinstance(data, SandboxSpawned):
            self.isolation, self.warm = storable(data.isolation), data.warm
        if event.type == "sandbox.running":
            self.running_at = earliest(self.running_at, event.time)

    def belong(self, task: str | None, attempt: int) -> None:
        """Take in whose sandbox it is: one attempt of one task, for ever."""
        self.task = self.task if task is None else max(self.task or "", task)
        self.attempt = max(self.attempt, attempt)

    def _become(self, event: Envelope[Any], data: SandboxEvent) -> None:
        self.state, self.state_sequence, self.state_at = SANDBOX_STATES[event.type].value, event.sequence, event.time
        self.runtime = storable(data.runtime)
        self.reason = storable(getattr(data, "reason", None))
        self.error = storable(data.error) if isinstance(data, SandboxFailed) else None
        self.unsaid = data.unsaid if isinstance(data, SandboxTerminated) else None


@dataclass(slots=True)
class MessageRow:
    """What a batch says of a message."""

    project: str
    message: str
    sandbox: str
    state: str = ""
    state_sequence: int = 0
    state_at: datetime | None = None
    reason: str | None = None
    message_type: str = "user_message"
    sender_id: str | None = None
    correlation_id: str | None = None
    queued_at: datetime | None = None

    def absorb(self, event: Envelope[Any]) -> None:
        """Take in what a message's event says."""
        data: Any = event.data
        if event.sequence > self.state_sequence:
            self.state, self.state_sequence, self.state_at = (
                MESSAGE_STATES[event.type].value,
                event.sequence,
                event.time,
            )
            self.message_type = storable(data.message_type) or ""
            self.reason = storable(getattr(data, "reason", None))
        if isinstance(data, MessageQueued):
            self.queued_at = earliest(self.queued_at, event.time)
            self.sender_id, self.correlation_id = storable(data.sender_id), storable(data.correlation_id)


def as_row(row: "TaskRow | SandboxRow | MessageRow | ApprovalRow") -> tuple[Any, ...]:
    """The values, in the order of the columns."""
    return tuple(getattr(row, column.name) for column in fields(row))


def life_of(source: str) -> str:
    """The life of the task that is the source, ordered by time as a UUIDv7 is; empty if it has none."""
    tail = source.rpartition("/")[2]
    return tail if _LIFE.fullmatch(tail) else ""


def earliest(one: datetime | None, other: datetime | None) -> datetime | None:
    """The earlier of two times, of which one may not be known."""
    return min((time for time in (one, other) if time is not None), default=None)


def storable(text: str | None) -> str | None:
    """`text` without the one character that Postgres can't keep in a text."""
    return text if text is None else text.replace("\x00", "\N{REPLACEMENT CHARACTER}")
