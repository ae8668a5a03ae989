"""The state of tasks, sandboxes, messages and approvals, folded from events so that their order does not matter.

Pure. The statements in `event_ingest.batch_statements` fold a batch into the tables, by the rule of
`event_ingest.read_models`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from event_ingest.read_models import ApprovalRow, MessageRow, SandboxRow, TaskRow, parse_life
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events import EVENTS, EventData
from sandherd.contracts.events.message import MessageRejected
from sandherd.contracts.events.sandbox import SandboxExtended
from sandherd.contracts.events.task import TaskEvent
from sandherd.contracts.states import ApprovalState, MessageState, SandboxState, TaskState

CLOSING: Final = tuple(name for name, model in EVENTS.items() if model.closes_source)
"""The types of events that close their source."""
CLOSING_ALONE: Final = tuple(name for name, model in EVENTS.items() if model.closes_source_alone)
"""The types of events that close their source if they are its first event."""

Key = tuple[str, str]
"""A project, and a name in it."""


@dataclass(slots=True)
class Projections:
    """The states that result from the events of a batch, by entity."""

    tasks: dict[Key, TaskRow] = field(default_factory=dict)
    sandboxes: dict[Key, SandboxRow] = field(default_factory=dict)
    messages: dict[Key, MessageRow] = field(default_factory=dict)
    approvals: dict[tuple[str, str, str], ApprovalRow] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.tasks or self.sandboxes or self.messages or self.approvals)

    def apply(self, event: Envelope[Any]) -> None:
        """Fold an event into the states. Most events set no state and change nothing."""
        state = event.data.sets_state
        if isinstance(state, TaskState):
            self._apply_task_event(event)
        elif isinstance(state, SandboxState) or isinstance(event.data, SandboxExtended):
            self._sandbox_row(event.project, event.subject).apply(event)
        elif isinstance(state, MessageState) and not _is_rejected_at_once(event):
            key = event.project, event.data.message_id
            self.messages.setdefault(key, MessageRow(*key, sandbox=event.subject)).apply(event)
        elif isinstance(state, ApprovalState):
            approval_key = event.project, event.subject, event.data.approval_id
            self.approvals.setdefault(approval_key, ApprovalRow(*approval_key)).apply(event)

    def _apply_task_event(self, event: Envelope[Any]) -> None:
        key, life = (event.project, event.subject), parse_life(event.source)
        row = self.tasks.get(key)
        if row is None or life > row.life:
            row = self.tasks[key] = TaskRow(*key, life=life)
        if life == row.life:
            row.apply(event)
        data: TaskEvent = event.data
        sandbox = getattr(data, "sandbox", None)
        if sandbox is not None:
            self._sandbox_row(event.project, sandbox).set_task(event.subject, data.attempt)

    def _sandbox_row(self, project: str, sandbox: str) -> SandboxRow:
        return self.sandboxes.setdefault((project, sandbox), SandboxRow(project, sandbox))


def project_events(events: Iterable[Envelope[EventData]]) -> Projections:
    """The states that result from these events, which may be in any order."""
    projections = Projections()
    for event in events:
        if not event.type.startswith("agent."):
            projections.apply(event)
    return projections


def _is_rejected_at_once(event: Envelope[Any]) -> bool:
    """Whether the event rejects the command to send a message. The name stays free, so another message may have it."""
    return isinstance(event.data, MessageRejected) and event.sequence == 1
