"""Commands that a text names, for the home of `sandherd --home`: without the option they would act on another one."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_COMMAND: Final = re.compile(r"`sandherd (?!-)(?![^`]*--help`)")


def with_home(text: str, home: Path | None) -> str:
    """The text; its commands, other than those for a help page, have the option if it was given. Pure."""
    return text if home is None else _COMMAND.sub(lambda _: f"`sandherd --home {shlex.quote(str(home))} ", text)


def home_in(arguments: Sequence[str]) -> Path | None:
    """The value of the option before the command; None without it, and with `--nats-url`, which names the broker."""
    rest, found = list(arguments), None
    while rest and rest[0].startswith("--"):
        option, equals, value = rest[0].partition("=")
        if option == "--nats-url":
            return None
        if option == "--home":
            found = Path(value if equals else next(iter(rest[1:]), ""))
        del rest[: 1 if equals else 2]
    return found
