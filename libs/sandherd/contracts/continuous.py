"""Continuous tasks: an agent works in iterations until its work is validated as done, or a limit is reached."""

from typing import Annotated, Final, Literal, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from sandherd.contracts.harnesses import Text
from sandherd.contracts.model import MicroDollars, Model
from sandherd.contracts.patterns import PRINTABLE

_DAY_SECONDS: Final = 86_400

StopReason = Literal[
    "validation_passed",
    "completion_signal",
    "max_iterations_reached",
    "max_cost_reached",
    "max_duration_reached",
    "consecutive_errors",
    "shutdown_signal",
]
"""Why no further iteration was started. The first two are a success."""

Signal = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=PRINTABLE)]


class Validation(Model):
    """A command that validates the work: it is done if the command ends with exit status 0."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: Text
    """The command is run by /bin/sh in the work tree, with the agent's variables. The agent gets the end of its output.
    """
    timeout_seconds: Annotated[int, Field(ge=1, le=_DAY_SECONDS)] = 600
    """If it times out, the work is not valid."""


class Continuous(Model):
    """When a continuous task is completed, and when it is given up.

    With a validation alone, the work is validated after every iteration. With a completion signal alone, the agent's
    signal counts. With both, the work is validated each time the agent signals that it is done.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_iterations: Annotated[int, Field(ge=1, le=100_000)] = 10
    max_cost_micro_usd: Annotated[MicroDollars, Field(ge=1)] | None = None
    """An iteration is stopped as soon as it costs more than what remains."""
    max_duration_seconds: Annotated[int, Field(ge=1, le=7 * _DAY_SECONDS)] | None = None
    """Counted from the start of the first iteration. The iteration that runs at that time is stopped."""
    max_consecutive_errors: Annotated[int, Field(ge=1, le=1000)] = 3
    """Maximum number of consecutive failed iterations."""
    completion_signal: Signal | None = None
    """The text that the agent outputs when it is done; choose one that it does not output by chance."""
    completion_threshold: Annotated[int, Field(ge=1, le=1000)] = 1
    """The number of consecutive iterations in which the agent has to output the signal."""
    validation: Validation | None = None

    @model_validator(mode="after")
    def _can_be_done(self) -> Self:
        if self.validation is None and self.completion_signal is None:
            raise ValueError("there is no completion criterion: give a validation, a completion_signal or both")
        return self
