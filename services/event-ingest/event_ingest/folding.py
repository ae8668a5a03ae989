"""What events say of tasks, sandboxes, messages and approvals, folded so that their order does not matter.

Pure. The statements in `event_ingest.statements` fold a batch into the tables by the rule of `event_ingest.standing`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from event_ingest.approvals import APPROVAL_STATES, ApprovalRow
from event_ingest.standing import (
    MESSAGE_STATES,
    SANDBOX_STATES,
    TASK_STATES,
    MessageRow,
    SandboxRow,
    TaskRow,
    life_of,
)
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events import EventData
from sandherd.contracts.events.lifecycle import SandboxExtended, TaskEvent

CLOSING: Final = (
    "agent.shutdown",
    "task.completed",
    "task.failed",
    "task.cancelled",
    "task.rejected",
    "sandbox.terminated",
    "sandbox.failed",
    "message.acknowledged",
    "message.expired",
    "message.rejected",
    "approval.granted",
    "approval.denied",
    "approval.expired",
)
"""After one of these its source has nothing more to say, unless it says so with a higher number."""

Key = tuple[str, str]
"""A project, and a name in it."""


@dataclass(slots=True)
class Folded:
    """What a batch says, by entity."""

    tasks: dict[Key, TaskRow] = field(default_factory=dict)
    sandboxes: dict[Key, SandboxRow] = field(default_factory=dict)
    messages: dict[Key, MessageRow] = field(default_factory=dict)
    approvals: dict[tuple[str, str, str], ApprovalRow] = field(default_factory=dict)

    def absorb(self, event: Envelope[Any]) -> None:
        """Take in one event; most speak of no state and change nothing."""
        if event.type in TASK_STATES:
            self._absorb_task(event)
        elif event.type in SANDBOX_STATES or event.type == SandboxExtended.type:
            self._sandbox(event.project, event.subject).absorb(event)
        elif event.type in MESSAGE_STATES:
            key = event.project, event.data.message_id
            self.messages.setdefault(key, MessageRow(*key, sandbox=event.subject)).absorb(event)
        elif event.type in APPROVAL_STATES:
            whose = event.project, event.subject, event.data.approval_id
            self.approvals.setdefault(whose, ApprovalRow(*whose)).absorb(event)

    def _absorb_task(self, event: Envelope[Any]) -> None:
        key, life = (event.project, event.subject), life_of(event.source)
        row = self.tasks.get(key)
        if row is None or life > row.life:
            row = self.tasks[key] = TaskRow(*key, life=life)
        if life == row.life:
            row.absorb(event)
        data: TaskEvent = event.data
        sandbox = getattr(data, "sandbox", None)
        if sandbox is not None:
            self._sandbox(event.project, sandbox).belong(event.subject, data.attempt)

    def _sandbox(self, project: str, sandbox: str) -> SandboxRow:
        return self.sandboxes.setdefault((project, sandbox), SandboxRow(project, sandbox))


def folded(events: Iterable[Envelope[EventData]]) -> Folded:
    """What these events say, whatever their order."""
    found = Folded()
    for event in events:
        if not event.type.startswith("agent."):
            found.absorb(event)
    return found
