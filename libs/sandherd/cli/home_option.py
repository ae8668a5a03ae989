"""Adds `--home` to the commands that a message suggests: without the option they would act on another home."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_COMMAND: Final = re.compile(r"`sandherd (?!-)(?![^`]*--help`)")


def with_home(text: str, home: Path | None) -> str:
    """The text with `--home` in the commands that it names; unchanged without a home.

    Commands for a help page and commands that begin with an option are unchanged.
    """
    return text if home is None else _COMMAND.sub(lambda _: f"`sandherd --home {shlex.quote(str(home))} ", text)


def home_in(arguments: Sequence[str]) -> Path | None:
    """The value of `--home` before the command. None if it is not given, or if `--nats-url` names the broker."""
    rest, home = list(arguments), None
    while rest and rest[0].startswith("--"):
        option, equals, value = rest[0].partition("=")
        if option == "--nats-url":
            return None
        if option == "--home":
            home = Path(value if equals else next(iter(rest[1:]), ""))
        del rest[: 1 if equals else 2]
    return home
