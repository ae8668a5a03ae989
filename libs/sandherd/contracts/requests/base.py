"""What every request has in common: its name, its answer, a reply, and a page of a list."""

from typing import Annotated, Any, ClassVar, Final, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from sandherd.contracts.errors import Problem
from sandherd.contracts.model import Model

REQUESTS: Final[dict[str, type["Request[Any]"]]] = {}
"""Every request, by name: `<service>.<verb>`."""

TIMEOUT_HEADER: Final = "Sandherd-Timeout"
"""A NATS header of a request: for how many seconds the requester waits for the reply. Without it 30 are assumed."""

AnswerT = TypeVar("AnswerT")


class Request(Model, Generic[AnswerT]):
    """A question to a service. `Answer` is the model of what stands in the reply's `ok`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    Answer: ClassVar[type[BaseModel]]
    type: ClassVar[str]
    answered_by: ClassVar[str]
    """The service. Not called `service`: an attribute becomes the default of a field of that name."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "type" in cls.__dict__:
            cls.answered_by = cls.type.partition(".")[0]
            REQUESTS[cls.type] = cls


class Reply(Model, Generic[AnswerT]):
    """What comes back: one of the two, never both."""

    ok: AnswerT | None = None
    error: Problem | None = None


class Page(Model):
    """How much of a list, and from where."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    cursor: str | None = None
    """Where the last page ended, as it was given."""
