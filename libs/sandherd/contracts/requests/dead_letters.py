"""Requests about dead letters: to list them, and to have a service handle one of its own again."""

from collections.abc import Mapping
from typing import ClassVar, Final, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from sandherd.contracts.commands import Note
from sandherd.contracts.errors import Problem
from sandherd.contracts.model import Model, Moment, Number
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.base import Page, Request


class DeadLetter(Model):
    """A message that could not be handled, with the reason."""

    number: int
    """Its sequence in the stream DEAD, which identifies it in requests."""
    service: SafeName
    reason: Problem
    subject: str
    stream: str
    stream_sequence: int
    size: int
    dead_at: Moment
    payload: str | None = None
    """The payload as text with replacement characters; only if the dead letter was requested by its `number`."""


class DeadLetters(Model):
    """Dead letters, newest first."""

    letters: list[DeadLetter]
    next_cursor: str | None = None


class ListDeadLetters(Request[DeadLetters], Page):
    """List the dead letters."""

    Answer: ClassVar[type[BaseModel]] = DeadLetters
    type: ClassVar[str] = "event-ingest.dead"
    number: Number | None = None
    service: SafeName | None = None


class RequeueResult(Model):
    """The outcome of requeuing a dead letter."""

    number: int
    outcome: Literal["done", "retry", "dead"]
    event: UUID | None = None
    detail: str | None = None


class Requeue(Request[RequeueResult]):
    """Handle a dead letter again; it is deleted from DEAD if that succeeds. Each service handles its own.

    A request on the subject of a project only finds dead letters of that project.
    """

    Answer: ClassVar[type[BaseModel]] = RequeueResult
    number: Number
    requeued_by: Note | None = Field(default=None, exclude_if=lambda value: value is None)
    """Who requested it, for the service's log."""


class RequeueSpawner(Requeue):
    """Requeue a dead letter of the spawner."""

    type: ClassVar[str] = "spawner.requeue"


class RequeueEventIngest(Requeue):
    """Requeue a dead letter of event-ingest."""

    type: ClassVar[str] = "event-ingest.requeue"


class RequeueMessageRelay(Requeue):
    """Requeue a dead letter of the message-relay."""

    type: ClassVar[str] = "message-relay.requeue"


class RequeueMonitor(Requeue):
    """Requeue a dead letter of the monitor."""

    type: ClassVar[str] = "monitor.requeue"


REQUEUES: Final[Mapping[str, type[Requeue]]] = {
    request.answered_by: request
    for request in (RequeueSpawner, RequeueEventIngest, RequeueMessageRelay, RequeueMonitor)
}
"""The request to requeue a dead letter, by service."""
