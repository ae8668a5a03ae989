"""The files that a task takes from the results of tasks that it depends on."""

from typing import Annotated, Final, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from sandherd.contracts.events.base import ArtifactRef
from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.patterns import explained

MAX_PATHS: Final = 64
"""Maximum number of paths of one input."""
_RELATIVE: Final = explained(
    r"^[^/\x00-\x1f\x7f][^\x00-\x1f\x7f]*$",
    "a relative path without control characters: one that does not begin with /",
)
InputPath = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=_RELATIVE)]
"""A path relative to the work tree, or a pattern as in `.gitignore`: `dist/**`, `*.whl`. A folder stands for everything
in it."""


class TaskInput(Model):
    """Files of a dependency's result that a task begins with, at the same paths."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: SafeName
    """The dependency. Its spec has `keep_work`, so that its work tree is stored when the task is completed."""
    paths: Annotated[tuple[InputPath, ...], Field(min_length=1, max_length=MAX_PATHS)]
    """The paths. Each one has to be in the result; otherwise the task fails."""
    sandbox: SafeName | None = Field(default=None, exclude_if=lambda value: value is None)
    """The sandbox that has stored the result; only the spawner sets it, for the worker."""
    work: ArtifactRef | None = Field(default=None, exclude_if=lambda value: value is None)
    """The result, a compressed tar archive; only the spawner sets it, for the worker."""

    @model_validator(mode="after")
    def _paths_are_inside(self) -> Self:
        for path in self.paths:
            if not {"", ".", ".."}.isdisjoint(path.split("/")):
                raise ValueError(f"paths: {path[:80]!r} is not a plain path or pattern inside the work tree")
        return self
