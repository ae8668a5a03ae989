"""Requests about dead letters: to list them, and to have a service handle its own again."""

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
    """Its sequence in the DEAD stream, by which it is requested."""
    service: SafeName
    reason: Problem
    subject: str
    stream: str
    stream_sequence: int
    size: int
    dead_at: Moment
    payload: str | None = None
    """As text with replacement characters; only if the dead letter was requested by `number`."""


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

    In the subject of a project, only letters of that project are found.
    """

    Answer: ClassVar[type[BaseModel]] = RequeueResult
    number: Number
    requeued_by: Note | None = Field(default=None, exclude_if=lambda value: value is None)
    """Who has requested it, for the service's log."""


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
    """Handle a dead letter of the monitor again."""

    type: ClassVar[str] = "monitor.requeue"


REQUEUES: Final[Mapping[str, type[Requeue]]] = {
    request.answered_by: request
    for request in (RequeueSpawner, RequeueEventIngest, RequeueMessageRelay, RequeueMonitor)
}
"""The request of each service that requeues dead letters."""
