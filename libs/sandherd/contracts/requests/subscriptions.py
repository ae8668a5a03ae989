"""Requests to event-ingest about durable subscriptions.

The spawner creates and deletes their consumers at the request of event-ingest.
"""

from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

from sandherd.contracts.model import MAX_TYPES, Count, Model, Moment, Number, Seconds
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.base import Request
from sandherd.contracts.validation_texts import validation_text

_LIMITS: Final = frozenset({"greater_than_equal", "less_than", "less_than_equal", "timezone_aware"})
"""The types of pydantic's errors about a number or a time whose value is out of range."""


def _start(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Validate a start. An error states the limit of a number or a time, instead of all alternatives of the type."""
    try:
        if isinstance(value, str) and value not in {"new", "all"}:
            value = datetime.fromisoformat(value)  # below this function, strict types accept no text as a time
        return validate(value)
    except ValidationError as error:
        errors = [found for found in error.errors(include_input=False) if found["type"] in _LIMITS]
        limits = [validation_text(found["type"], found["msg"], found.get("ctx", {})) for found in errors]
        raise _invalid_start(*limits[:1]) from None
    except ValueError:
        raise _invalid_start() from None


def _invalid_start(
    limit: str = "neither 'new', 'all', a stream sequence, nor a time in ISO 8601",
) -> PydanticCustomError:
    return PydanticCustomError("start", "{limit}", {"limit": limit})


Start = Annotated[Literal["new", "all"] | Number | Moment, WrapValidator(_start)]
"""Where a subscription begins: at new events, at all events in the stream, at a stream sequence, or at a time."""
Entities = Annotated[list[SafeName], Field(max_length=16)]


class Subscription(Model):
    """A durable position in a project's events. Events that are not acknowledged are redelivered."""

    name: SafeName
    stream: str
    consumer: str
    """The durable pull consumer of that stream, from which events are fetched. It belongs to this subscription only."""
    types: list[str]
    """Only events of these types; if the list is empty, events of all types."""
    entities: list[str] = Field(default_factory=list)
    """Only events about these tasks and sandboxes; if the list is empty, about all."""
    created_at: Moment
    waiting: Count
    """Number of events that are not delivered yet."""
    unacknowledged: Count
    """Number of events that were delivered and are not acknowledged, including those that a reader has returned: the
    next reader gets them first."""
    most_unacknowledged: Count
    """Maximum number of unacknowledged events; no more events are delivered at this number."""
    ack_wait_seconds: Seconds
    """The time after which an unacknowledged event is redelivered."""
    idle_seconds: Seconds
    """The subscription is deleted if nothing is fetched for this time."""
    is_read: bool | None = None
    """Whether a reader is waiting for events now; not whether events were read."""
    active_at: Moment | None = None
    """The last delivery or acknowledgement since the broker's start, or else the creation. Without a waiting reader,
    the subscription expires at the earliest `idle_seconds` after this."""


class SubscriptionList(Model):
    """A project's subscriptions, by name."""

    subscriptions: list[Subscription]
    most: int
    """Maximum number of subscriptions of a project."""


class ListSubscriptions(Request[SubscriptionList]):
    """List a project's subscriptions."""

    Answer: ClassVar[type[BaseModel]] = SubscriptionList
    type: ClassVar[str] = "event-ingest.subscriptions"


class Subscribe(Request[Subscription]):
    """Create a subscription.

    If the same request is repeated, it has no effect, and the subscription keeps its position. A subscription of the
    same name with other types or entities is a `conflict`, unless `update` is set.
    """

    Answer: ClassVar[type[BaseModel]] = Subscription
    type: ClassVar[str] = "event-ingest.subscribe"
    name: SafeName
    types: list[str] = Field(default_factory=list, max_length=MAX_TYPES)
    """Only events of these types, such as `agent.tool_use`, or of a whole domain, `agent` or `agent.*`; if the list is
    empty, events of all types."""
    start: Start = "new"
    """Where the subscription begins: `new`, at new events; `all`, at all events in the stream; or at this stream
    sequence or this time. It is used only when the subscription is created; a sequence after the next one, or a time in
    the future, is then refused."""
    entities: Entities = Field(default_factory=list, exclude_if=lambda names: not names)
    """Only events with one of these tasks and sandboxes as their `subject`; if the list is empty, events about all.
    Events of a task's agents have the sandbox as their `subject`, so also name the task's sandboxes (see
    `task.assigned`)."""
    update: bool = Field(default=False, exclude_if=lambda update: not update)
    """Whether to set `types` and `entities` of an existing subscription of this name. It keeps its position, and
    `start` is not used. If there is none, it is created."""


class UnsubscribeResult(Model):
    """The result of deleting a subscription."""

    name: SafeName
    waiting: Count
    """Number of events that were not delivered yet."""


class Unsubscribe(Request[UnsubscribeResult]):
    """Delete a subscription and its position."""

    Answer: ClassVar[type[BaseModel]] = UnsubscribeResult
    type: ClassVar[str] = "event-ingest.unsubscribe"
    name: SafeName
