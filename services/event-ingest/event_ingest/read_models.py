"""The state of a task, a sandbox, a message or an approval, from its events: the rows of the read tables. Pure.

Each value of a row is that of the event with the highest `sequence` that has it, or the lowest or highest value of all
events. So the result depends neither on the order of events nor on how often an event is delivered.
"""

import json
import re
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, ClassVar, Final, Protocol
from uuid import UUID

from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events.message import ApprovalRequested, MessageQueued
from sandherd.contracts.events.sandbox import (
    SandboxEvent,
    SandboxExtended,
    SandboxFailed,
    SandboxRequested,
    SandboxRunning,
    SandboxSpawned,
    SandboxTerminated,
)
from sandherd.contracts.events.task import TaskCancelled, TaskFailed, TaskRetryScheduled, TaskRunning, TaskSubmitted
from sandherd.contracts.failures import ErrorType
from sandherd.contracts.states import SandboxState

_LIFE: Final = re.compile("[0-9a-f]{32}")


class ReadModelRow(Protocol):
    """A row of a read table: a dataclass whose fields are the columns."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


@dataclass(slots=True)
class TaskRow:
    """A task, as the events of a batch state it. The fields are the columns, in the order of the statement."""

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
    """Sequence of the last retry. A sandbox or start in an event before it belongs to an earlier attempt."""
    life: str = ""
    """Distinguishes tasks with the same name, as names are reused: a later task replaces the row of an earlier one."""
    labels: str | None = None

    def apply(self, event: Envelope[Any]) -> None:
        """Fold in an event of the task."""
        data: Any = event.data
        self.submitted_at = earliest(self.submitted_at, event.time)
        if event.sequence > self.state_sequence:
            self._apply_state(event, data)
        if isinstance(data, TaskSubmitted):
            self._apply_submission(data)
        if isinstance(data, TaskRetryScheduled):
            self.retried_sequence = max(self.retried_sequence, event.sequence)
        sandbox = getattr(data, "sandbox", None)
        if sandbox is not None and event.sequence > self.sandbox_sequence:
            self.sandbox, self.sandbox_sequence = sandbox, event.sequence
        if isinstance(data, TaskRunning) and event.sequence > self.started_sequence:
            self.started_at, self.started_sequence = event.time, event.sequence

    def _apply_submission(self, data: TaskSubmitted) -> None:
        self.text, self.harness, self.runtime = storable(data.task), storable(data.harness), storable(data.runtime)
        self.priority, self.deadline = storable(data.priority), data.deadline
        self.depends_on = json.dumps([storable(name) for name in data.depends_on])
        self.max_attempts, self.profile = data.max_attempts, data.profile
        self.labels = json.dumps(data.labels)

    def _apply_state(self, event: Envelope[Any], data: Any) -> None:
        self.state, self.state_sequence, self.state_at = data.sets_state.value, event.sequence, event.time
        # A retry names the attempt that failed; the task waits for the next one.
        self.attempt = data.attempt + 1 if isinstance(data, TaskRetryScheduled) else data.attempt
        self.not_before = getattr(data, "not_before", None)
        failed = isinstance(data, TaskFailed | TaskRetryScheduled)
        self.error = storable(data.error if failed else getattr(data, "reason", None)) or None
        cancelled = ErrorType.CANCELLED if isinstance(data, TaskCancelled) else None
        self.error_type = storable(getattr(data, "error_type", cancelled))
        result = getattr(data, "result", None)
        self.result = None if result is None else json.dumps(result)


@dataclass(slots=True)
class SandboxRow:
    """A sandbox, as the events of a batch state it. Its task is taken from the spawner's events only."""

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

    def apply(self, event: Envelope[Any]) -> None:
        """Fold in an event of the sandbox."""
        data: Any = event.data
        self.requested_at = earliest(self.requested_at, event.time)
        self.set_task(event.taskid, 1)
        if data.sets_state is not None and event.sequence > self.state_sequence:
            self._apply_state(event, data, data.sets_state)
        if isinstance(data, SandboxRequested | SandboxExtended) and event.sequence > self.expires_sequence:
            self.expires_at, self.expires_sequence = data.expires_at, event.sequence
        if isinstance(data, SandboxRequested):
            self.profile = data.profile
        if isinstance(data, SandboxSpawned):
            self.isolation, self.warm = storable(data.isolation), data.warm
        if isinstance(data, SandboxRunning):
            self.running_at = earliest(self.running_at, event.time)

    def set_task(self, task: str | None, attempt: int) -> None:
        """Fold in the task and the attempt that the sandbox is for. They never change."""
        self.task = self.task if task is None else max(self.task or "", task)
        self.attempt = max(self.attempt, attempt)

    def _apply_state(self, event: Envelope[Any], data: SandboxEvent, state: SandboxState) -> None:
        self.state, self.state_sequence, self.state_at = state.value, event.sequence, event.time
        self.runtime = storable(data.runtime)
        self.reason = storable(getattr(data, "reason", None))
        self.error = storable(data.error) if isinstance(data, SandboxFailed) else None
        self.unsaid = data.unsaid if isinstance(data, SandboxTerminated) else None


@dataclass(slots=True)
class MessageRow:
    """A message, as the events of a batch state it."""

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

    def apply(self, event: Envelope[Any]) -> None:
        """Fold in an event of the message."""
        data: Any = event.data
        if event.sequence > self.state_sequence:
            self.state, self.state_sequence, self.state_at = data.sets_state.value, event.sequence, event.time
            self.message_type = storable(data.message_type) or ""
            self.reason = storable(getattr(data, "reason", None))
        if isinstance(data, MessageQueued):
            self.queued_at = earliest(self.queued_at, event.time)
            self.sender_id, self.correlation_id = storable(data.sender_id), storable(data.correlation_id)


def as_row(row: ReadModelRow) -> tuple[Any, ...]:
    """The values of a row of a read table, in the order of the columns."""
    return tuple(getattr(row, column.name) for column in fields(row))


def parse_life(source: str) -> str:
    """The `life` in the source of a task's events; empty if it has none. A later life is greater, as with UUIDv7s."""
    tail = source.rpartition("/")[2]
    return tail if _LIFE.fullmatch(tail) else ""


def earliest(first: datetime | None, second: datetime | None) -> datetime | None:
    """The earlier of two times; None stands for an unknown time."""
    return min((time for time in (first, second) if time is not None), default=None)


def storable(text: str | None) -> str | None:
    """`text` with a replacement for NUL, the one character that Postgres can't store in a text."""
    return text if text is None else text.replace("\x00", "\N{REPLACEMENT CHARACTER}")


@dataclass(slots=True)
class ApprovalRow:
    """An approval, as the events of a batch state it. The fields are the columns, in the order of the statement."""

    project: str
    sandbox: str
    approval: str
    state: str = ""
    state_sequence: int = 0
    state_at: datetime | None = None
    tool: str | None = None
    reason: str | None = None
    requested_at: datetime | None = None
    expires_at: datetime | None = None
    on_timeout: str | None = None
    asked_in: UUID | None = None
    answer: str | None = None
    decided_by: str | None = None
    decision_reason: str | None = None
    outcome: str | None = None

    def apply(self, event: Envelope[Any]) -> None:
        """Fold in an event of the approval."""
        data: Any = event.data
        if event.sequence > self.state_sequence:
            self.state, self.state_sequence, self.state_at = data.sets_state.value, event.sequence, event.time
        if isinstance(data, ApprovalRequested):
            self.requested_at, self.expires_at, self.asked_in = event.time, data.expires_at, data.asked_in
            self.tool, self.reason, self.on_timeout = map(storable, (data.tool, data.reason, data.on_timeout))
            return
        self.answer, self.decided_by = getattr(data, "answer", None), storable(getattr(data, "by", None))
        self.decision_reason = storable(getattr(data, "reason", None))
        self.outcome = storable(getattr(data, "outcome", None))
