"""From a message of the EVENTS stream to what the monitor looks at. Bodies that no rule reads are not parsed."""

from datetime import datetime
from typing import Final

from monitor.state import Seen
from sandherd.contracts.errors import ContractError
from sandherd.contracts.events import EVENTS
from sandherd.contracts.reading import read_event
from sandherd.contracts.subjects import read_event_subject

DOMAINS: Final = frozenset({"agent", "sandbox", "message", "monitor"})

_ALWAYS: Final = frozenset(
    {
        "agent.started",
        "sandbox.requested",
        "monitor.dead_found",
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
    if event_type.partition(".")[0] not in DOMAINS:
        return None
    if event_type not in READ:
        return Seen(project, entity, event_type, number, at)
    try:
        event = read_event(subject, document)
    except ContractError:
        return Seen(project, entity, event_type, number, at)
    return Seen(project, entity, event_type, number, at, event.data, event.id, event.taskid, event.traceparent)
