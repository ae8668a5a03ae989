"""A question to each service: how are you, and what do you rest on? `sandherd doctor` asks it."""

from enum import StrEnum
from typing import ClassVar

from pydantic import BaseModel, Field

from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.quantities import Count, Moment, Seconds
from sandherd.contracts.requests.base import Request


class PartKind(StrEnum):
    """What a service rests on, by who can mend it."""

    READINESS = "readiness"
    """What `/readyz` shows: the service's own parts."""
    CONSUMER = "consumer"
    """A durable consumer, and whether the service hears it."""
    STREAM = "stream"
    """A stream or a bucket, as it is declared."""
    MIGRATIONS = "migrations"
    """The tables of the history."""
    RUNTIME = "runtime"
    """A place where sandboxes are made."""
    REMARK = "remark"
    """What is worth a look, while the service works all the same."""


class Part(Model):
    """Something that a service rests on, looked at just now."""

    kind: PartKind
    name: str
    problem: str | None = None
    """What is wrong with it; None when it is well."""


class Waiting(Model):
    """What waits for a service at one of its durable consumers."""

    consumer: SafeName
    pending: Count
    """Not delivered yet."""
    unacknowledged: Count
    """Delivered, and not handled yet."""
    still_seconds: Seconds
    """For so long, at the least, the oldest of them has waited."""


class Examination(Model):
    """How one replica of a service is."""

    service: SafeName
    version: str
    instance: str
    now: Moment
    """What its clock shows."""
    credential_expires_at: Moment | None = None
    """When the broker will let it in no more; None for never."""
    parts: list[Part]
    waiting: list[Waiting] = Field(default_factory=list)


class Examine(Request[Examination]):
    """How are you? Of several replicas one answers."""

    Answer: ClassVar[type[BaseModel]] = Examination


class ExamineSpawner(Examine):
    """How is the spawner?"""

    type: ClassVar[str] = "spawner.examine"


class ExamineEventIngest(Examine):
    """How is event-ingest?"""

    type: ClassVar[str] = "event-ingest.examine"


class ExamineMonitor(Examine):
    """How is the monitor?"""

    type: ClassVar[str] = "monitor.examine"


class ExamineMessageRelay(Examine):
    """How is the message-relay?"""

    type: ClassVar[str] = "message-relay.examine"
