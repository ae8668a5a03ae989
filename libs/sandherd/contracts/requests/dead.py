"""Questions about dead letters: what lies there, and a request to each service to try its own again."""

from typing import ClassVar, Literal
from uuid import UUID

from pydantic import BaseModel

from sandherd.contracts.errors import Problem
from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.quantities import Moment, Number
from sandherd.contracts.requests.base import Page, Request


class DeadLetter(Model):
    """A message that could not be handled, and why."""

    number: int
    """Its place in the DEAD stream; it is asked for by this."""
    service: SafeName
    reason: Problem
    subject: str
    stream: str
    stream_sequence: int
    size: int
    dead_at: Moment
    payload: str | None = None
    """As text with replacement characters; only where one was asked for by number."""


class DeadLetters(Model):
    """Dead letters, newest first."""

    letters: list[DeadLetter]
    next_cursor: str | None = None


class AskDead(Request[DeadLetters], Page):
    """What lies in DEAD."""

    Answer: ClassVar[type[BaseModel]] = DeadLetters
    type: ClassVar[str] = "event-ingest.dead"
    number: Number | None = None
    service: SafeName | None = None


class Requeued(Model):
    """What became of a dead letter that was put back."""

    number: int
    outcome: Literal["done", "retry", "dead"]
    event: UUID | None = None
    detail: str | None = None


class Requeue(Request[Requeued]):
    """Handle a dead letter once more; it leaves DEAD when that succeeds. Each service answers for its own."""

    Answer: ClassVar[type[BaseModel]] = Requeued
    number: Number


class RequeueSpawner(Requeue):
    """Put back a dead letter of the spawner."""

    type: ClassVar[str] = "spawner.requeue"


class RequeueEventIngest(Requeue):
    """Put back a dead letter of event-ingest."""

    type: ClassVar[str] = "event-ingest.requeue"


class RequeueMessageRelay(Requeue):
    """Put back a dead letter of the message-relay."""

    type: ClassVar[str] = "message-relay.requeue"
