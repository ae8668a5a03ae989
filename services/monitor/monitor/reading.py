"""From a message of the EVENTS stream to what the monitor looks at. Bodies that no rule reads are not parsed."""

from datetime import datetime
from typing import Final

from monitor.state import Seen
from sandherd.contracts.errors import ContractError
from sandherd.contracts.events import EVENTS
from sandherd.contracts.reading import read_event
from sandherd.contracts.subjects import read_event_subject

DOMAINS: Final = frozenset({"agent", "sandbox", "message", "approval", "monitor"})
OVER: Final = frozenset({"task.retry_scheduled", "task.failed", "task.cancelled"})
"""An attempt is over by the spawner's word, whatever its agent does. They are read as said of its sandbox."""

_SMALLEST: Final = 100
"""An envelope has more bytes than this, whatever it holds."""
_ALWAYS: Final = frozenset(
    {
        "agent.heartbeat",
        "agent.started",
        "sandbox.requested",
        "sandbox.extended",
        "monitor.dead_found",
        "monitor.flood_found",
        "monitor.idle_found",
        "monitor.intervention_decided",
        "monitor.intervention_outcome",
    }
)
READ: Final = _ALWAYS | {
    name for name, model in EVENTS.items() if model.opens or model.closes or name.startswith("message.")
}
"""The types whose content is read."""


def read(subject: str, document: bytes, number: int, at: datetime) -> Seen | None:
    """The event, or None if it is about nothing that is watched here.

    What breaks the contract is kept in DEAD by event-ingest; here it is only a sign of life, because the broker
    vouches for its subject and for nothing else.
    """
    try:
        project, entity, event_type = read_event_subject(subject)
    except ContractError:
        return None
    if event_type in OVER:
        return _over(subject, document, number, at)
    if event_type.partition(".")[0] not in DOMAINS:
        return None
    size = len(document)
    if event_type not in READ:
        return Seen(project, entity, event_type, number, at, size=size, junk=_is_junk(document))
    try:
        event = read_event(subject, document)
    except ContractError:
        return Seen(project, entity, event_type, number, at, size=size, junk=True)
    about = event.data, event.id, event.taskid, event.traceparent
    return Seen(project, entity, event_type, number, at, *about, size=size)


def _is_junk(document: bytes) -> bool:
    """Whether this can't be an event, without reading it: no object, or one too small for an envelope."""
    return len(document) < _SMALLEST or document[:1] != b"{" or document[-1:] != b"}"


def _over(subject: str, document: bytes, number: int, at: datetime) -> Seen | None:
    """The end of an attempt, as said of its sandbox; None if it had none."""
    try:
        event = read_event(subject, document)
    except ContractError:
        return None
    sandbox = getattr(event.data, "sandbox", None)
    return Seen(event.project, sandbox, event.type, number, at, event.data, event.id) if sandbox else None
