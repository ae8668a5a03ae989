"""The lines that a driver sends beside events. It is not trusted: every line is validated."""

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.model import Count

Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Place = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
Signal = Annotated[int, Field(ge=1, le=64)]
Short = Annotated[str, StringConstraints(max_length=4000)]


class DriverLine(BaseModel):
    """The `data` of a line; unknown fields are ignored."""


class ReadyLine(DriverLine):
    """The agent can take messages."""

    session_id: Name | None = None
    model: Short | None = None
    version: Short | None = None


class MessageTaken(DriverLine):
    """The agent has taken a message."""

    message: Name
    refusal: ClassVar[None] = None


class MessageRefused(DriverLine):
    """The agent can't receive a message."""

    message: Name
    reason: Short = ""

    @property
    def refusal(self) -> str:
        """The reason."""
        return self.reason or "the agent did not take it"


class TurnLine(DriverLine):
    """A turn has begun (`running`) or ended (`idle`)."""

    turn: Count
    state: Literal["running", "idle"]


class ApprovalLine(DriverLine):
    """The agent requests to use a tool."""

    approval_id: Name
    tool: Name
    input: dict[str, Any] = Field(default_factory=dict)
    reason: str | None = None


class TranscriptLine(DriverLine):
    """The session's transcript so far is in this file."""

    path: Place
    session_id: Name
    keep: bool = True
    """Whether to store the file now. False only announces the path, in case the driver is killed."""


class ResultLine(DriverLine):
    """The task's result."""

    error_type: Short | None = None
    error: str = ""
    signal: Signal | None = None
    turns: Count = 1
    final_output: str | None = None
    stop_reason: Short | None = None
    session_id: Name | None = None


_LINES: Final[dict[str, type[DriverLine]]] = {
    "driver.ready": ReadyLine,
    "driver.taken": MessageTaken,
    "driver.refused": MessageRefused,
    "driver.turn": TurnLine,
    "driver.ask": ApprovalLine,
    "driver.transcript": TranscriptLine,
    "driver.result": ResultLine,
}


def read_driver_line(type: str, data: dict[str, Any]) -> DriverLine:
    """The line as an object. Raises `ContractError` naming what is wrong."""
    model = _LINES.get(type)
    if model is None:
        raise ContractError(Code.UNKNOWN_TYPE, f"{type[:80]!r} is not a type of driver line", field="type")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ContractError.from_validation(error) from None
