"""Questions about durable subscriptions: event-ingest makes a consumer for whoever asks, and takes it away."""

from typing import ClassVar, Literal

from pydantic import BaseModel, Field

from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.quantities import Count, Moment, Number, Seconds
from sandherd.contracts.requests.base import Request


class Subscription(Model):
    """A place of one's own in a project's events. What is not acknowledged comes again."""

    name: SafeName
    stream: str
    consumer: str
    """The durable pull consumer of that stream to take them from, by its owner's name for as long as it is there."""
    types: list[str]
    """Only these; all if there are none."""
    created_at: Moment
    waiting: Count
    """Events that it has still to be given."""
    unacknowledged: Count
    """Events that it was given, and that are not acknowledged."""
    most_unacknowledged: Count
    """With so many of them it is given no more."""
    ack_wait_seconds: Seconds
    """What is not acknowledged for so long comes again."""
    idle_seconds: Seconds
    """Nothing taken from it for so long, and it is gone."""


class SubscriptionList(Model):
    """A project's subscriptions, by name."""

    subscriptions: list[Subscription]
    most: int
    """So many it may have."""


class AskSubscriptions(Request[SubscriptionList]):
    """Which subscriptions does the project have?"""

    Answer: ClassVar[type[BaseModel]] = SubscriptionList
    type: ClassVar[str] = "event-ingest.subscriptions"


class Subscribe(Request[Subscription]):
    """Make a subscription. The same one asked for twice is one, and keeps its place."""

    Answer: ClassVar[type[BaseModel]] = Subscription
    type: ClassVar[str] = "event-ingest.subscribe"
    name: SafeName
    types: list[str] = Field(default_factory=list, max_length=64)
    """Only these, as `agent.tool_use`, or those of a domain, as `agent`; all if none is named."""
    start: Literal["new", "all"] | Number = "new"
    """What is said from now on, all that the stream still has, or all from this place of the stream on. It counts when
    the subscription is made, and never again."""


class Unsubscribed(Model):
    """What became of a subscription that was to be taken away."""

    name: SafeName
    waiting: Count
    """Events that it had still to be given."""


class Unsubscribe(Request[Unsubscribed]):
    """Take a subscription away, and forget how far it was."""

    Answer: ClassVar[type[BaseModel]] = Unsubscribed
    type: ClassVar[str] = "event-ingest.unsubscribe"
    name: SafeName
