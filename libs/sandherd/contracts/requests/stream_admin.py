"""Requests between services: changes to streams that only the spawner's credential may make, once they are checked."""

from typing import ClassVar, Literal

from pydantic import BaseModel, Field

from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.quantities import Count, Number, Seconds
from sandherd.contracts.requests.base import Request


class ConsumerCreated(Model):
    """Whether the consumer was created; it was not if one is in that place already."""

    created: bool


class CreateConsumer(Request[ConsumerCreated]):
    """Create the durable pull consumer of a project's subscription, if its place is free."""

    Answer: ClassVar[type[BaseModel]] = ConsumerCreated
    type: ClassVar[str] = "spawner.create_consumer"
    place: Number
    name: SafeName
    types: list[str] = Field(default_factory=list, max_length=64)
    start: Literal["new", "all"] | Number = "new"
    ack_wait_seconds: Seconds
    idle_seconds: Seconds


class ConsumerDeleted(Model):
    """Whether there was such a consumer."""

    deleted: bool


class DeleteConsumer(Request[ConsumerDeleted]):
    """Delete the consumer in a place of the project."""

    Answer: ClassVar[type[BaseModel]] = ConsumerDeleted
    type: ClassVar[str] = "spawner.delete_consumer"
    place: Number


class Purged(Model):
    """How many messages were removed."""

    messages: Count


class PurgeEvents(Request[Purged]):
    """Remove events below a sequence. Refused for what a durable consumer has not acknowledged."""

    Answer: ClassVar[type[BaseModel]] = Purged
    type: ClassVar[str] = "spawner.purge_events"
    below: Number


class PurgeArtifacts(Request[Purged]):
    """Remove the oldest pieces of artifacts of one sandbox, all but `keep` of each."""

    Answer: ClassVar[type[BaseModel]] = Purged
    type: ClassVar[str] = "spawner.purge_artifacts"
    sandbox: SafeName
    keep: Number


class DeadDeleted(Model):
    """Whether there was such a dead letter."""

    deleted: bool


class DeleteDead(Request[DeadDeleted]):
    """Delete a dead letter that was handled in the end."""

    Answer: ClassVar[type[BaseModel]] = DeadDeleted
    type: ClassVar[str] = "spawner.delete_dead"
    number: Number
