"""Going round: an agent that is sent to work again until its work is judged to be done, or a limit is reached."""

from typing import Annotated, Final, Literal, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from sandherd.contracts.harnesses import Text
from sandherd.contracts.model import Model
from sandherd.contracts.quantities import MicroDollars

_DAY: Final = 86_400

StopReason = Literal[
    "validation_passed",
    "completion_signal",
    "max_iterations_reached",
    "max_cost_reached",
    "max_duration_reached",
    "consecutive_errors",
    "shutdown_signal",
]
"""Why no further iteration was begun. The first two are a success."""

Signal = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]


class Validation(Model):
    """A command that judges the work: done if it ends with exit status 0."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: Text
    """Run by /bin/sh in the work tree, with the agent's variables. The end of its output is told to the agent."""
    timeout_seconds: Annotated[int, Field(ge=1, le=_DAY)] = 600
    """Not done within this time is not valid."""


class Continuous(Model):
    """When an agent that goes round has done its task, and when it is given up.

    With a validation alone, every iteration is judged by it. With a completion signal alone, what the agent says
    counts. With both, the work is judged each time the agent says that it is done.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_iterations: Annotated[int, Field(ge=1, le=100_000)] = 10
    max_cost_micro_usd: Annotated[MicroDollars, Field(ge=1)] | None = None
    """An iteration that costs more than what is left is stopped in its midst."""
    max_duration_seconds: Annotated[int, Field(ge=1, le=7 * _DAY)] | None = None
    """From the beginning of the first iteration. The one that is under way then is stopped."""
    max_consecutive_errors: Annotated[int, Field(ge=1, le=1000)] = 3
    """How many iterations in a row may fail."""
    completion_signal: Signal | None = None
    """What the agent says when it is done: a text that is not said by chance."""
    completion_threshold: Annotated[int, Field(ge=1, le=1000)] = 1
    """In how many iterations in a row it has to say it."""
    validation: Validation | None = None

    @model_validator(mode="after")
    def _can_be_done(self) -> Self:
        if self.validation is None and self.completion_signal is None:
            raise ValueError("nothing says when it is done: give a validation, a completion_signal or both")
        return self
