"""Requests between services for changes of streams. Only the spawner's credential permits them, after checks."""

from typing import ClassVar

from pydantic import BaseModel, Field

from sandherd.contracts.model import MAX_TYPES, Count, Model, Number, Seconds
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.base import Request
from sandherd.contracts.requests.subscriptions import Entities, Start


class ConsumerCreated(Model):
    """Whether the consumer was created; false if the place already has one."""

    created: bool


class CreateConsumer(Request[ConsumerCreated]):
    """Create the durable pull consumer of a project's subscription, if its place is free."""

    Answer: ClassVar[type[BaseModel]] = ConsumerCreated
    type: ClassVar[str] = "spawner.create_consumer"
    place: Number
    name: SafeName
    types: list[str] = Field(default_factory=list, max_length=MAX_TYPES)
    start: Start = "new"
    ack_wait_seconds: Seconds
    idle_seconds: Seconds
    entities: Entities = Field(default_factory=list, exclude_if=lambda names: not names)
    update: bool = Field(default=False, exclude_if=lambda update: not update)
    """Whether to change the types and entities of the consumer in this place; its other properties are not changed."""


class ConsumerDeleted(Model):
    """Whether the consumer existed."""

    deleted: bool


class DeleteConsumer(Request[ConsumerDeleted]):
    """Delete the consumer in a place of the project."""

    Answer: ClassVar[type[BaseModel]] = ConsumerDeleted
    type: ClassVar[str] = "spawner.delete_consumer"
    place: Number


class PurgeResult(Model):
    """How many messages were removed."""

    messages: Count


class PurgeEvents(Request[PurgeResult]):
    """Remove events below a sequence. Refused for events that a durable consumer has not acknowledged."""

    Answer: ClassVar[type[BaseModel]] = PurgeResult
    type: ClassVar[str] = "spawner.purge_events"
    below: Number


class PurgeArtifacts(Request[PurgeResult]):
    """Remove the oldest chunks of the artifacts of one sandbox, all but the last `keep` of them together."""

    Answer: ClassVar[type[BaseModel]] = PurgeResult
    type: ClassVar[str] = "spawner.purge_artifacts"
    sandbox: SafeName
    keep: Number


class DeadDeleted(Model):
    """Whether the dead letter existed."""

    deleted: bool


class DeleteDead(Request[DeadDeleted]):
    """Delete a dead letter that was handled by a requeue."""

    Answer: ClassVar[type[BaseModel]] = DeadDeleted
    type: ClassVar[str] = "spawner.delete_dead"
    number: Number
