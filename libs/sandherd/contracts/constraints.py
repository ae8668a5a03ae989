"""Constraints of an agent: which paths it must not write, and which commands it must not run."""

import shlex
from collections.abc import Iterable
from typing import Annotated, Final, Literal, get_args

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints

from sandherd.contracts.model import Model
from sandherd.contracts.patterns import explained

MAX_PATTERNS: Final = 16
"""Maximum number of patterns of each kind. It also applies to the sum of the patterns of the herd, the profile, the
project and the task."""
DefaultConstraint = Literal["recursive_deletion", "force_push", "credentials", "disabled_checks"]
DEFAULT_CONSTRAINTS: Final[tuple[DefaultConstraint, ...]] = get_args(DefaultConstraint)
"""The constraints that every agent has: no recursive deletion outside its work tree, no push that overwrites a branch,
no reading of credentials, and no commit or push without its hooks."""


def _check_command(pattern: str) -> str:
    try:
        arguments = shlex.split(pattern)
    except ValueError:
        raise ValueError("a quotation mark is not closed") from None
    if not arguments or arguments[0].startswith("-") or "/" in arguments[0]:
        raise ValueError("a pattern begins with the name of a program, such as `npm publish`")
    return pattern


PathPattern = Annotated[
    str,
    StringConstraints(
        min_length=1,
        max_length=100,
        pattern=explained(r"^[^/\x00-\x1f\x7f][^\x00-\x1f\x7f]*$", "a pattern of paths inside the work tree"),
    ),
]
"""A file in the work tree, or a folder with everything in it. `*` and `?` match within a name, `**` matches any number
of folders. A pattern without a slash matches at any depth."""
CommandPattern = Annotated[
    str,
    StringConstraints(
        min_length=1,
        max_length=100,
        pattern=explained(r"^[^\x00-\x1f\x7f]+$", "a command without control characters"),
    ),
    AfterValidator(_check_command),
]
"""A program and arguments, with `*` and `?`: `npm publish`, `kubectl delete *`, `git push * --tags`. A command matches
if it has all options of the pattern, and its other arguments begin with those of the pattern."""


class Constraints(Model):
    """What an agent must not do. The monitor detects it in the agent's calls, but does not prevent it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    paths: Annotated[tuple[PathPattern, ...], Field(max_length=MAX_PATTERNS)] = ()
    """Paths that must not be written."""
    commands: Annotated[tuple[CommandPattern, ...], Field(max_length=MAX_PATTERNS)] = ()
    """Commands that must not run."""
    permitted: Annotated[tuple[DefaultConstraint, ...], Field(max_length=len(DEFAULT_CONSTRAINTS))] = ()
    """Default constraints that do not apply to the agent: `recursive_deletion` outside the work tree, `force_push`,
    reading `credentials`, `disabled_checks` (hooks)."""


def merged(levels: Iterable[Constraints | None]) -> Constraints | None:
    """The constraints of all levels together; None if there are none.

    Raises `ValueError` if there are more than `MAX_PATTERNS` of one kind.
    """
    found = [level for level in levels if level is not None and level != Constraints()]
    if not found:
        return None
    names = ("paths", "commands", "permitted")
    union = {name: tuple(dict.fromkeys(value for level in found for value in getattr(level, name))) for name in names}
    for name in ("paths", "commands"):
        if len(union[name]) > MAX_PATTERNS:
            text = f"{len(union[name])} {name} with those of the herd, the profile and the project"
            raise ValueError(f"constraints: {text}; at most {MAX_PATTERNS} are possible")
    return Constraints.model_validate(union)
