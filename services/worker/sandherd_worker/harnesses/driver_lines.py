"""What a driver says to its worker beside events. It is not trusted: every line is looked at before it is believed."""

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.quantities import Count

Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Place = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
Signal = Annotated[int, Field(ge=1, le=64)]
Short = Annotated[str, StringConstraints(max_length=4000)]


class Line(BaseModel):
    """The `data` of a line; what it holds beside these fields is passed over."""


class Ready(Line):
    """The agent can take messages."""

    session_id: Name | None = None
    model: Short | None = None
    version: Short | None = None


class Taken(Line):
    """The agent has a message."""

    message: Name
    refusal: ClassVar[None] = None


class Refused(Line):
    """The agent can't be given a message."""

    message: Name
    reason: Short = ""

    @property
    def refusal(self) -> str:
        """Why not."""
        return self.reason or "the agent did not take it"


class Turn(Line):
    """What the agent does now."""

    turn: Count
    state: Literal["running", "idle"]


class Ask(Line):
    """May it use this tool?"""

    approval_id: Name
    tool: Name
    input: dict[str, Any] = Field(default_factory=dict)
    reason: str | None = None


class TranscriptLine(Line):
    """The session is in this file, as far as it has come."""

    path: Place
    session_id: Name
    keep: bool = True
    """False: it is only named, for the case that the driver can't do so again."""


class Result(Line):
    """What came of the task."""

    error_type: Short | None = None
    error: str = ""
    signal: Signal | None = None
    turns: Count = 1
    final_output: str | None = None
    stop_reason: Short | None = None
    session_id: Name | None = None


_LINES: Final[dict[str, type[Line]]] = {
    "driver.ready": Ready,
    "driver.taken": Taken,
    "driver.refused": Refused,
    "driver.turn": Turn,
    "driver.ask": Ask,
    "driver.transcript": TranscriptLine,
    "driver.result": Result,
}


def read_driver_line(type: str, data: dict[str, Any]) -> Line:
    """The line as an object. Raises `ContractError` naming what is wrong."""
    model = _LINES.get(type)
    if model is None:
        raise ContractError(Code.UNKNOWN_TYPE, f"{type[:80]!r} is nothing that a driver says", field="type")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ContractError.from_validation(error) from None
