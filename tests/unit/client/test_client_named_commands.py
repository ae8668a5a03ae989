"""The commands that texts of the client and of services name: each exists, with its options and arguments."""

import re
from pathlib import Path
from typing import Final

import pytest

from sandherd.client.remedy_commands import REMEDY_COMMANDS
from tests.unit.client.test_client_commands import ALL, ROOT

SOURCES: Final = Path(__file__).parents[3]
NAMED: Final = re.compile(r"`sandherd ([^`\"\n]+)`")
"""In one line of source; placeholders of a text, and what its user is to replace, are arguments."""


def parsed(line: str) -> tuple[tuple[str, ...], list[str]]:
    """The path of the command that a line names, and the words after it."""
    words = line.split()
    path: tuple[str, ...] = ()
    while words and (*path, words[0]) in ALL:
        path = (*path, words.pop(0))
    return path, words


def fault(line: str) -> str | None:
    """The error that the command line raises for a named command, or None."""
    path, words = parsed(line)
    command = ALL[path]
    if hasattr(command, "commands") and words and words[0].isalpha() and words[0].islower():
        return f"no command {words[0]}"
    known = {"--help", "-h"}
    known |= {name for one in (ROOT, command) for option in one.params for name in option.opts + option.secondary_opts}
    unknown = [word for word in words if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known]
    return f"no option {unknown[0]}" if unknown else None


def lacking(line: str) -> list[str]:
    """The arguments that the command requires, and that the line lacks."""
    path, words = parsed(line)
    needed = [str(one.name) for one in ALL[path].params if one.required and not one.opts[0].startswith("-")]
    given = words[: next((at for at, word in enumerate(words) if word.startswith("-")), len(words))]
    return needed[len(given) :]


def test_every_named_command_exists_with_its_options() -> None:
    """A remedy that can't be typed is none."""
    files = [*(SOURCES / "libs").rglob("*.py"), *(SOURCES / "services").rglob("*.py")]
    found = {(path.name, line) for path in files for line in NAMED.findall(path.read_text())}
    assert len(found) > 100
    assert [f"{name}: sandherd {line}: {why}" for name, line in found if (why := fault(line))] == []


@pytest.mark.parametrize("line", sorted(set(REMEDY_COMMANDS.values())))
def test_command_for_a_remedy_has_the_arguments_that_it_requires(line: str) -> None:
    """It is copied from the error: without them it would be refused."""
    assert (fault(line), lacking(line)) == (None, [])
    assert lacking("schedules delete"), "a command without its argument would be found"
