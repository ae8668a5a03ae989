"""Decodes events from the live stream and from the history.

Unknown event types are decoded, too, with their data unchanged: they have a number in their source's sequence, and
skipping them would appear as a gap.
"""

from typing import Any

from pydantic import ConfigDict

from sandherd.contracts.decoder import AGENT_SOURCE, read_event, read_stored
from sandherd.contracts.envelope import Envelope, parse_separately
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import EventData
from sandherd.contracts.requests import StoredEvent
from sandherd.contracts.subjects import read_event_subject

Event = Envelope[Any]


class UnknownEvent(EventData):
    """An event of a newer version; its fields are in `model_extra`."""

    model_config = ConfigDict(frozen=True, extra="allow")


def from_live(subject: str, document: bytes) -> Event | None:
    """The event in a message of the live stream; None for an invalid message, which the history refuses, too."""
    try:
        return read_event(subject, document, separately=True)
    except ContractError as error:
        return _newer(subject, document) if error.problem.code is Code.UNKNOWN_TYPE else None


def _newer(subject: str, document: bytes) -> Event | None:
    project, entity, event_type = read_event_subject(subject)
    try:
        event = parse_separately(document, UnknownEvent)
    except ContractError:
        return None
    agrees = (event.project, event.subject, event.type) == (project, entity, event_type)
    if event_type.startswith("agent."):
        agrees = agrees and event.source == AGENT_SOURCE + entity
    return event if agrees else None


def from_history(stored_event: StoredEvent) -> Event:
    """The event in a reply of the history. Raises `ContractError` if it is invalid."""
    return read_stored(stored_event.envelope, unknown=UnknownEvent)
