"""Decodes messages of the stream EVENTS for the monitor. It parses only the bodies that the facts or a rule need."""

from datetime import datetime
from typing import Final

from monitor.facts import ObservedEvent
from monitor.rules import registry
from sandherd.contracts.decoder import read_event
from sandherd.contracts.errors import ContractError
from sandherd.contracts.events import EVENTS, EventData
from sandherd.contracts.events.agent import AgentHeartbeat, AgentStarted, AgentTurnCompleted, AgentUsage, Outcome
from sandherd.contracts.events.conversation import AgentSystemMessage
from sandherd.contracts.events.message import ApprovalEvent, MessageEvent
from sandherd.contracts.events.monitor import (
    IdleFinding,
    MonitorFindingAssessed,
    MonitorGuardianAnalysed,
    MonitorInterventionDecided,
    MonitorInterventionOutcome,
    MonitorNotificationPublished,
    MonitorRuleMuted,
    MonitorRuleUnmuted,
)
from sandherd.contracts.events.sandbox import SandboxExtended, SandboxRefused, SandboxRequested
from sandherd.contracts.events.task import TaskCancelled, TaskFailed, TaskRetryScheduled
from sandherd.contracts.events.tools import AgentFileEdited
from sandherd.contracts.subjects import read_event_subject

DOMAINS: Final = frozenset({"agent", "sandbox", "message", "approval", "monitor"})
"""The domains whose events are about sandboxes."""
ENDS_ATTEMPT: Final = frozenset({TaskRetryScheduled.type, TaskFailed.type, TaskCancelled.type})
"""The spawner's events that end an attempt, even if its agent still runs. They are read as events of the attempt's
sandbox."""

_MIN_EVENT_BYTES: Final = 100
"""Minimum size of an envelope, in bytes."""
_PARSED_EVENTS: Final[tuple[type[EventData], ...]] = (
    *(AgentHeartbeat, AgentStarted, SandboxRequested, SandboxExtended, SandboxRefused, MessageEvent, ApprovalEvent),
    *(AgentTurnCompleted, AgentUsage, Outcome, AgentFileEdited, AgentSystemMessage),
    *(IdleFinding, MonitorGuardianAnalysed, MonitorInterventionDecided, MonitorInterventionOutcome),
    *(MonitorFindingAssessed, MonitorNotificationPublished, MonitorRuleMuted, MonitorRuleUnmuted),
    *(model for rule in registry.RULES for model in rule.reads),
)
READ: Final = frozenset(
    name for name, model in EVENTS.items() if model.opens or model.closes or issubclass(model, _PARSED_EVENTS)
)
"""The event types whose content is parsed."""


def read(subject: str, document: bytes, number: int, at: datetime) -> ObservedEvent | None:
    """The event in a message. None if the event is not about a watched entity.

    event-ingest stores events that break the contract in the stream DEAD. Here, such an event only shows that the
    sandbox runs, because the broker has checked only its subject.
    """
    try:
        project, entity, event_type = read_event_subject(subject)
    except ContractError:
        return None
    if event_type in ENDS_ATTEMPT:
        return _attempt_end(subject, document, number, at)
    if event_type.partition(".")[0] not in DOMAINS:
        return None
    size = len(document)
    if event_type not in READ:
        return ObservedEvent(project, entity, event_type, number, at, size=size, junk=_is_junk(document))
    try:
        event = read_event(subject, document)
    except ContractError:
        return ObservedEvent(project, entity, event_type, number, at, size=size, junk=True)
    attributes = event.data, event.id, event.taskid, event.traceparent
    return ObservedEvent(project, entity, event_type, number, at, *attributes, size=size, sequence=event.sequence)


def _is_junk(document: bytes) -> bool:
    """Whether a message can't be an event: it is not a JSON object, or is smaller than an envelope.

    It is not parsed.
    """
    return len(document) < _MIN_EVENT_BYTES or document[:1] != b"{" or document[-1:] != b"}"


def _attempt_end(subject: str, document: bytes, number: int, at: datetime) -> ObservedEvent | None:
    """The end of an attempt, as an event of its sandbox. None if the attempt had no sandbox."""
    try:
        event = read_event(subject, document)
    except ContractError:
        return None
    sandbox = getattr(event.data, "sandbox", None)
    attributes = event.data, event.id, event.subject, event.traceparent
    return ObservedEvent(event.project, sandbox, event.type, number, at, *attributes) if sandbox else None
