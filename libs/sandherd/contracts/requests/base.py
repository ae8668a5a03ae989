"""The base classes of all requests, of replies, and of requests for a page of a list."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sandherd.contracts.errors import Problem
from sandherd.contracts.model import Model

REQUESTS: Final[dict[str, type["Request[Any]"]]] = {}
"""All requests, by name: `<service>.<verb>`."""

TIMEOUT_HEADER: Final = "Sandherd-Timeout"
"""The NATS header of a request with the number of seconds that the requester waits for the reply; 30 if it is missing.
"""

AnswerT = TypeVar("AnswerT")


class Request(Model, Generic[AnswerT]):
    """A request to a service. `Answer` is the model of the reply's `ok`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    Answer: ClassVar[type[BaseModel]]
    type: ClassVar[str]
    answered_by: ClassVar[str]
    """The service that replies. It is not named `service`: it would become the default of a field with that name."""

    if not TYPE_CHECKING:

        def __class_getitem__(cls, answer: Any) -> type["Request[Any]"]:
            """The class itself: the type of the reply is for type checkers only.

            Pydantic would create a class for each.
            """
            return cls

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "type" in cls.__dict__:
            cls.answered_by = cls.type.partition(".")[0]
            REQUESTS[cls.type] = cls


def _exactly_one(schema: dict[str, Any]) -> None:
    """State in a reply's schema that it has one of its fields; a field that is not set is omitted, never null."""
    for name, field in schema["properties"].items():
        schema["properties"][name] = field["anyOf"][0]
    # With `properties`, as strict validators want each required field to be declared beside `required`.
    schema["oneOf"] = [{"properties": {name: True}, "required": [name]} for name in schema["properties"]]


class Reply(Model, Generic[AnswerT]):
    """A reply. It has exactly one of the two fields."""

    model_config = ConfigDict(json_schema_extra=_exactly_one)

    ok: AnswerT | None = None
    error: Problem | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.ok is None) == (self.error is None):
            raise ValueError("a reply has either `ok` or `error`")
        return self


class Page(Model):
    """The page of a list to return: its length and its start."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    cursor: str | None = None
    """The `next_cursor` or `prev_cursor` of the last page, unchanged."""
