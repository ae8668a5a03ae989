"""Options with constraints of agents."""

from typing import Annotated, Any

import typer

from sandherd.contracts.constraints import DEFAULT_CONSTRAINTS

ForbidPath = Annotated[
    list[str] | None,
    typer.Option("--forbid-path", metavar="GLOB", help="A path that the agent must not write; repeatable."),
]
ForbidCommand = Annotated[
    list[str] | None,
    typer.Option(
        "--forbid-command", metavar="PATTERN", help="A command that it must not run, as 'npm publish'; repeatable."
    ),
]
Permit = Annotated[
    list[str] | None,
    typer.Option(
        "--permit",
        metavar="NAME",
        help=f"A default constraint that does not apply: {', '.join(DEFAULT_CONSTRAINTS)}; repeatable.",
    ),
]


def constraints_of(
    paths: list[str] | None, commands: list[str] | None, permitted: list[str] | None
) -> dict[str, Any] | None:
    """The constraints of these options; None without any."""
    found = {"paths": paths, "commands": commands, "permitted": permitted}
    return {name: value for name, value in found.items() if value} or None
