"""Requests about durable subscriptions: event-ingest has their consumers created and deleted."""

from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

from sandherd.contracts.model import Count, Model, Moment, Number, Seconds
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.base import Request
from sandherd.contracts.validation_texts import validation_text

_LIMITS: Final = frozenset({"greater_than_equal", "less_than", "less_than_equal", "timezone_aware"})
"""The types of pydantic's errors about a number or a time that is invalid only by its value."""


def _start(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Name the field in an error, and the limit of a number or a time, but not the alternatives of the field's type."""
    try:
        if isinstance(value, str) and value not in {"new", "all"}:
            value = datetime.fromisoformat(value)  # below this function, strict types accept no text as a time
        return validate(value)
    except ValidationError as error:
        errors = [each for each in error.errors(include_input=False) if each["type"] in _LIMITS]
        limits = [validation_text(each["type"], each["msg"], each.get("ctx", {})) for each in errors]
        raise _invalid_start(*limits[:1]) from None
    except ValueError:
        raise _invalid_start() from None


def _invalid_start(
    limit: str = "neither 'new', 'all', a stream sequence, nor a time in ISO 8601",
) -> PydanticCustomError:
    return PydanticCustomError("start", "{limit}", {"limit": limit})


Start = Annotated[Literal["new", "all"] | Number | Moment, WrapValidator(_start)]
"""Where a subscription begins: at new events, at all that the stream has, at a stream sequence, or at a time."""
Entities = Annotated[list[SafeName], Field(max_length=16)]


class Subscription(Model):
    """A durable position in a project's events. Events that are not acknowledged are redelivered."""

    name: SafeName
    stream: str
    consumer: str
    """The durable pull consumer of that stream to fetch events from; only this subscription has it while it exists."""
    types: list[str]
    """Only events of these types; all if the list is empty."""
    entities: list[str] = Field(default_factory=list)
    """Only events about these tasks and sandboxes; about all if the list is empty."""
    created_at: Moment
    waiting: Count
    """Events that are not delivered yet."""
    unacknowledged: Count
    """Events that were delivered and are not acknowledged, also those that a reader has returned: the next reader gets
    them first."""
    most_unacknowledged: Count
    """Maximum of unacknowledged events; at this number no more are delivered."""
    ack_wait_seconds: Seconds
    """After this time an unacknowledged event is redelivered."""
    idle_seconds: Seconds
    """If nothing is fetched for this time, the subscription is deleted."""
    is_read: bool | None = None
    """Whether a reader waits for events at present."""
    active_at: Moment | None = None
    """The last delivery or acknowledgement since the broker's start, or else its creation. It expires at the earliest
    `idle_seconds` after this, while no reader waits."""


class SubscriptionList(Model):
    """A project's subscriptions, by name."""

    subscriptions: list[Subscription]
    most: int
    """Maximum of subscriptions of a project."""


class ListSubscriptions(Request[SubscriptionList]):
    """List a project's subscriptions."""

    Answer: ClassVar[type[BaseModel]] = SubscriptionList
    type: ClassVar[str] = "event-ingest.subscriptions"


class Subscribe(Request[Subscription]):
    """Create a subscription. Creating the same one again has no effect, and it keeps its position.

    One of the same name with other types or entities is a `conflict`, unless `update` is set.
    """

    Answer: ClassVar[type[BaseModel]] = Subscription
    type: ClassVar[str] = "event-ingest.subscribe"
    name: SafeName
    types: list[str] = Field(default_factory=list, max_length=64)
    """Only these types, such as `agent.tool_use`, or all of a domain, `agent` or `agent.*`; all if the list is empty.
    """
    start: Start = "new"
    """Events from now on, all that the stream still has, or all from this stream sequence, or from this time on. Used
    only when the subscription is created: then a sequence after the next one, or a time in the future, is refused."""
    entities: Entities = Field(default_factory=list, exclude_if=lambda names: not names)
    """Only events about these tasks and sandboxes, by their `subject`; about all if the list is empty. A task's agents
    are in sandboxes, which `task.assigned` names."""
    update: bool = Field(default=False, exclude_if=lambda update: not update)
    """Set `types` and `entities` of the existing subscription of this name; it keeps its position, and `start` is not
    used. If there is none, it is created."""


class UnsubscribeResult(Model):
    """The result of deleting a subscription."""

    name: SafeName
    waiting: Count
    """Events that were not delivered yet."""


class Unsubscribe(Request[UnsubscribeResult]):
    """Delete a subscription and its position."""

    Answer: ClassVar[type[BaseModel]] = UnsubscribeResult
    type: ClassVar[str] = "event-ingest.unsubscribe"
    name: SafeName
