"""A request to each service for its health and that of its dependencies. `sandherd doctor` sends it."""

from enum import StrEnum
from typing import ClassVar, Final

from pydantic import BaseModel, Field

from sandherd.contracts.model import Count, Model, Moment, Seconds
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.base import Request


class PartKind(StrEnum):
    """The kinds of a service's dependencies, by who can fix them."""

    READINESS = "readiness"
    """What `/readyz` reports: the service's own parts."""
    CONSUMER = "consumer"
    """A durable consumer, and whether the service receives from it."""
    STREAM = "stream"
    """A stream or a bucket, compared with its declaration."""
    MIGRATIONS = "migrations"
    """The tables of the history."""
    RUNTIME = "runtime"
    """A runtime, in which sandboxes are created."""
    WARNING = "remark"
    """A warning: the service works nevertheless. Its value in messages is `remark`."""


DATABASE: Final = "postgres"
"""The name of event-ingest's part for the history's database."""
BROKER_DATA: Final = "broker data"
"""The name of event-ingest's warning that the broker lost events that the history has."""


GIT: Final = "git"
"""The name of the spawner's warning that git can't be used."""
MIRRORS: Final = "mirrors"
"""The name of the spawner's warning that the folder of the mirrors of repositories can't be written."""
FORGE_CREDENTIALS: Final = "forge credentials"
"""The name of the spawner's warning that a file with credentials of forges can't be read."""


class Part(Model):
    """A dependency of a service, checked just now."""

    kind: PartKind
    name: str
    problem: str | None = None
    """What is wrong with the dependency; None if it is healthy."""
    detail: str | None = Field(default=None, exclude_if=lambda detail: detail is None)
    """A description, such as the name and the address of the history's database, without user and password."""


class ConsumerBacklog(Model):
    """The messages that wait for a service at one of its durable consumers."""

    consumer: SafeName
    pending: Count
    """Number of messages that are not delivered yet."""
    unacknowledged: Count
    """Number of messages that are delivered, and not handled yet."""
    still_seconds: Seconds
    """The minimum time for which the oldest of these messages has waited."""


class Examination(Model):
    """The health of one replica of a service."""

    service: SafeName
    version: str
    instance: str
    now: Moment
    """The time by the clock of the service."""
    credential_expires_at: Moment | None = None
    """When the service's credential for the broker expires; None: never."""
    parts: list[Part]
    waiting: list[ConsumerBacklog] = Field(default_factory=list)


class Examine(Request[Examination]):
    """Return the health of a service. If it has several replicas, one of them replies."""

    Answer: ClassVar[type[BaseModel]] = Examination


class ExamineSpawner(Examine):
    """Return the health of the spawner."""

    type: ClassVar[str] = "spawner.examine"


class ExamineEventIngest(Examine):
    """Return the health of event-ingest."""

    type: ClassVar[str] = "event-ingest.examine"


class ExamineMonitor(Examine):
    """Return the health of the monitor."""

    type: ClassVar[str] = "monitor.examine"


class ExamineMessageRelay(Examine):
    """Return the health of the message-relay."""

    type: ClassVar[str] = "message-relay.examine"


class ExamineGateway(Examine):
    """Return the health of the gateway."""

    type: ClassVar[str] = "gateway.examine"
