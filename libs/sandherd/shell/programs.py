"""The programs that a tool call runs, from its input: parsed within limits, and never executed. Pure."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from sandherd.shell.launchers import Argv, name_of, started_program

MAX_CHARS: Final = 8192
"""Maximum length of a command that is parsed; in a longer one no program is found."""
MAX_PROGRAMS: Final = 64
"""Maximum number of programs of a command; of one with more, none is found."""
_MAX_DEPTH: Final = 3
"""How deep shells within shells are parsed."""
_FIELDS: Final = ("command", "cmd", "argv")
"""The inputs of tools that are commands: a text for a shell, or a list of arguments."""
_SHELLS: Final = frozenset({"sh", "bash", "zsh", "dash"})
_SCRIPT_OPTION: Final = re.compile(r"-[a-z]*c")
"""Matches the option of a shell before a script: `-c`, also after others, as in `-lc`."""
_SEPARATORS: Final = frozenset("();|&\n")
_REDIRECTIONS: Final = frozenset("<>")
_HERE_DOCUMENT: Final = re.compile(r"(?<!<)<<-?[ \t]*(?P<quote>[\"']?)(?P<end>[A-Za-z_][A-Za-z0-9_]*)(?P=quote)")
"""Matches the operator of a here-document, with the word that ends it."""
_PREPARATIONS: Final = frozenset({"cd", "pushd", "export", "source", ".", "set", "mkdir", "echo", "true", "unset"})
"""Programs of which it is assumed that they do not fail before `&&`."""


@dataclass(frozen=True)
class RunProgram:
    """A program with its arguments, and what the status of the whole command means for it."""

    argv: Argv
    success_shown: bool = True
    """Whether it has succeeded if the whole command has succeeded."""
    failure_shown: bool = True
    """Whether it has failed if the whole command has failed."""

    @property
    def name(self) -> str:
        """Its name, without its folder."""
        return name_of(self.argv[0])


def programs_of(tool_input: Mapping[str, Any]) -> list[RunProgram]:
    """The programs that this input of a tool runs, in order; none if it is not a command, or can't be parsed."""
    command = next((tool_input[name] for name in _FIELDS if tool_input.get(name)), None)
    if isinstance(command, str):
        return list(islice(_programs_of_script(command, _MAX_DEPTH), MAX_PROGRAMS))
    if isinstance(command, list) and all(isinstance(argument, str) for argument in command):
        fits = sum(map(len, command)) <= MAX_CHARS
        return list(islice(_started_programs(RunProgram(tuple(command)), _MAX_DEPTH), MAX_PROGRAMS)) if fits else []
    return []


def _programs_of_script(script: str, depth: int) -> Iterator[RunProgram]:
    if depth == 0 or len(script) > MAX_CHARS:
        return
    try:
        commands = list(islice(_commands(_tokens(script)), MAX_PROGRAMS + 1))
    except ValueError:  # a quotation without an end
        return
    for index in range(len(commands) if len(commands) <= MAX_PROGRAMS else 0):
        yield from _started_programs(_program_at(commands, index), depth)


def _started_programs(program: RunProgram, depth: int) -> Iterator[RunProgram]:
    """The programs that this program starts: those of its script if it is a shell, otherwise one program."""
    argv = started_program(program.argv)
    if len(argv) > 2 and name_of(argv[0]) in _SHELLS and _SCRIPT_OPTION.fullmatch(argv[1]):
        for inner in _programs_of_script(argv[2], depth - 1):
            yield replace(
                inner,
                success_shown=inner.success_shown and program.success_shown,
                failure_shown=inner.failure_shown and program.failure_shown,
            )
    elif argv:
        yield replace(program, argv=argv)


_Command = tuple[Argv, str]
"""The arguments of a command, and the operator after it."""


def _program_at(commands: Sequence[_Command], index: int) -> RunProgram:
    """The program at this index, with what the status of the whole command means for it."""
    argv, operator = commands[index]
    later = [operator, *(after for _, after in commands[index + 1 :])]
    is_last = index == len(commands) - 1
    before = commands[:index]
    success_shown = (
        argv[:1] != ("!",)
        and all(after == "&&" for after in later[:-1])
        and later[-1] in {"", ";"}
        and (not before or before[-1][1] != "||")
    )
    is_first = all(after != "&&" or name_of(arguments[0]) in _PREPARATIONS for arguments, after in before)
    return RunProgram(argv, success_shown=success_shown, failure_shown=success_shown and is_last and is_first)


def _commands(tokens: Iterator[str]) -> Iterator[_Command]:
    """The commands; redirections are left out. The operator of the last one is empty, `;` or `&`."""
    arguments: list[str] = []
    for token in tokens:
        if not token or not set(token) <= _SEPARATORS | _REDIRECTIONS:
            arguments.append(token)
        elif set(token) & _REDIRECTIONS:
            next(tokens, None)
        elif arguments and (operator := token.strip("()\n") or (";" if "\n" in token else "")):
            yield tuple(arguments), operator
            arguments = []
    if arguments:
        yield tuple(arguments), ""


def _without_documents(lines: Sequence[str]) -> Iterator[str]:
    """The lines without the texts of here-documents, which are not commands."""
    end: str | None = None
    for line in lines:
        if end is None:
            yield line
            begin = _HERE_DOCUMENT.search(line)
            end = begin["end"] if begin else None
        elif line.strip() == end:
            end = None


def _tokens(script: str) -> Iterator[str]:
    """The arguments and operators of a script, without comments. A comment ends with its line."""
    text = "\n".join(_without_documents(script.replace("\\\n", " ").split("\n")))
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    in_comment = False
    for token in lexer:
        in_comment = (in_comment or token.startswith("#")) and not ("\n" in token and set(token) <= _SEPARATORS)
        if not in_comment:
            yield token
