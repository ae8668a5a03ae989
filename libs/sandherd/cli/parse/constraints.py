"""Options with constraints of agents."""

from enum import StrEnum
from typing import Annotated, Any

import typer


class DefaultConstraint(StrEnum):
    """Constraint that every agent has; `contracts.constraints.DefaultConstraint`."""

    RECURSIVE_DELETION = "recursive_deletion"
    FORCE_PUSH = "force_push"
    CREDENTIALS = "credentials"
    DISABLED_CHECKS = "disabled_checks"


ForbidPath = Annotated[
    list[str] | None,
    typer.Option("--forbid-path", metavar="GLOB", help="Path that the agent must not write; repeatable."),
]
ForbidCommand = Annotated[
    list[str] | None,
    typer.Option(
        "--forbid-command",
        metavar="PATTERN",
        help="Command that the agent must not run, such as 'npm publish'; repeatable.",
    ),
]
Permit = Annotated[
    list[DefaultConstraint] | None,
    typer.Option("--permit", help="Default constraint that does not apply to this task; repeatable."),
]

ProjectPermit = Annotated[
    list[DefaultConstraint] | None,
    typer.Option("--permit", help="Default constraint that does not apply to the project's tasks; repeatable."),
]


def constraints_of(
    paths: list[str] | None, commands: list[str] | None, permitted: list[DefaultConstraint] | None
) -> dict[str, Any] | None:
    """The constraints from these options, as a field of a task spec; None if no option is given."""
    constraints = {"paths": paths, "commands": commands, "permitted": permitted}
    return {name: value for name, value in constraints.items() if value} or None
