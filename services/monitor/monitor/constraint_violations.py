"""Finds commands and edits of an agent that break a constraint. Pure.

It compares parsed arguments and paths, so a text that only mentions a command breaks nothing.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

from monitor.file_locations import ShellLocation, after_cd, deleted_outside, is_credential
from sandherd.contracts.constraints import Constraints
from sandherd.shell.programs import MAX_CHARS, RunProgram, programs_of

_NO_CONSTRAINTS: Final = Constraints()
_MAX_SHOWN_LENGTH: Final = 120
_COMMAND_FIELDS: Final = ("command", "cmd", "argv")
_TRIGGER: Final = re.compile(
    r"\brm\b|-delete\b|\bpush\b|--no-verify|hooksPath|\bcommit\b[^\n]{0,200}\s-[a-zA-Z]{0,5}n"
    r"|\.(?:ssh|netrc|aws|azure|kube|docker|npmrc|pypirc|gnupg|git-credentials|vault-token|credentials)\b"
    r"|credential|/secrets/|/etc/g?shadow|/environ\b|gcloud|auth\.json|gh/hosts|\btoken\b"
)
"""Matches the text of every command that breaks a default constraint, which is a constraint of every agent. Commands
without a match need not be parsed for these constraints."""
_SEARCH_PROGRAMS: Final = frozenset({"grep", "egrep", "rg", "ag", "awk", "gawk", "sed", "jq", "yq"})
"""Programs whose first argument is a pattern or a script, not a file."""
_TRIGGER_PARTS: Final = (
    *("rm ", "rm\t", "-delete", "push", "-verify", "hooksPath", "commit", ".ssh", ".netrc", ".aws", ".azure", ".kube"),
    *(".docker", "npmrc", "pypirc", ".gnupg", "credential", "vault-token", "secrets", "shadow", "environ", "gcloud"),
    *("auth", "token", "hosts.yml"),
)
"""Every text that `_TRIGGER` matches contains one of these strings. They are searched for first: most texts contain
none of them, and a regular expression is slow."""
_READING_PROGRAMS: Final = _SEARCH_PROGRAMS | {
    *("cat", "tac", "nl", "less", "more", "head", "tail", "bat", "strings", "xxd", "od", "hexdump", "base64"),
    *("base32", "cp", "mv", "scp", "rsync", "tar", "zip", "cut", "sort", "source", ".", "curl", "diff"),
}
_COPY_PROGRAMS: Final = frozenset({"cp", "mv", "scp", "rsync"})
"""Programs whose last argument is the destination."""
_GIT_COMMANDS_WITH_HOOKS: Final = frozenset({"commit", "push", "merge", "am", "rebase", "pull", "cherry-pick"})
_GIT_OPTIONS_WITH_VALUE: Final = frozenset(
    {"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--config-env"}
)
_TOKEN_COMMANDS: Final = (
    ("gh", "auth", "token"), ("gcloud", "auth", "print-access-token"), ("gcloud", "auth", "print-identity-token"),
    ("aws", "configure", "export-credentials"), ("aws", "ecr", "get-login-password"),
    ("az", "account", "get-access-token"), ("git", "credential", "fill"),
)  # fmt: skip
"""Commands that print a credential."""
_READ_TOOLS: Final = re.compile(r"(?:.*[_-])?(?:read|view|cat|open|grep)(?:[_-].*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Violation:
    """A violation: the name of the constraint, and the command or path that breaks it, as one line of plain text."""

    constraint: str
    shown: str


def forbidden_edit(path: str, constraints: Constraints | None) -> Violation | None:
    """The constraint that a change of this path breaks, if any."""
    for pattern in (constraints or _NO_CONSTRAINTS).paths:
        if _path_pattern(pattern).match(path):
            return Violation(f"path {pattern}", one_line(path))
    return None


def forbidden_call(
    tool: str, tool_input: Mapping[str, Any], constraints: Constraints | None, shell_location: ShellLocation
) -> Violation | None:
    """The constraint that a call breaks, if any. `shell_location` is the working directory of its shell."""
    effective = constraints or _NO_CONSTRAINTS
    if "credentials" not in effective.permitted and (path := _read_path(tool, tool_input)) is not None:
        return Violation("credentials", one_line(path))
    command = next((tool_input[name] for name in _COMMAND_FIELDS if tool_input.get(name)), None)
    if command is None or not _may_be_forbidden(command, effective):
        return None
    if isinstance(folder := tool_input.get("workdir") or tool_input.get("cwd"), str):
        shell_location = after_cd(shell_location, folder)
    return next(_violations(programs_of(tool_input), effective, shell_location), None)


def _may_be_forbidden(command: Any, constraints: Constraints) -> bool:
    text = command if isinstance(command, str) else " ".join(map(str, command)) if isinstance(command, list) else ""
    if len(text) > MAX_CHARS:
        return False
    if any(map(text.__contains__, _TRIGGER_PARTS)) and _TRIGGER.search(text):
        return True
    # A name with a pattern may be any program.
    return any("*" in name or "?" in name or name in text for name in map(_pattern_program, constraints.commands))


def _violations(
    programs: list[RunProgram], constraints: Constraints, shell_location: ShellLocation
) -> Iterator[Violation]:
    for program in programs:
        name, arguments = program.name, program.argv[1:]
        if name in {"cd", "pushd"}:
            shell_location = after_cd(shell_location, arguments[0] if arguments else "~")
            continue
        if not {"--help", "--dry-run"}.isdisjoint(arguments):
            continue
        broken_constraint = _default_violation(name, arguments, shell_location)
        if broken_constraint is not None and broken_constraint not in constraints.permitted:
            yield Violation(broken_constraint, one_line(" ".join(program.argv)))
        for pattern in constraints.commands:
            if _matches(pattern, name, arguments):
                yield Violation(f"command {pattern}", one_line(" ".join(program.argv)))


def _default_violation(name: str, arguments: tuple[str, ...], shell_location: ShellLocation) -> str | None:
    """The default constraint that a program breaks, if any."""
    if name == "git":
        return _git_violation(_git_arguments(arguments), arguments)
    if _deletes(name, arguments) and any(
        deleted_outside(shell_location, path) for path in _deleted_paths(name, arguments)
    ):
        return "recursive_deletion"
    if name in _READING_PROGRAMS and any(map(is_credential, _read_files(name, arguments))):
        return "credentials"
    return "credentials" if _prints_token(name, arguments) else None


def _git_violation(arguments: tuple[str, ...], all_arguments: tuple[str, ...]) -> str | None:
    command, *rest = arguments or ("",)
    short = [word for word in rest if re.fullmatch(r"-[a-zA-Z]+", word)]
    if command in _GIT_COMMANDS_WITH_HOOKS and (
        "--no-verify" in rest
        or any(word.startswith("core.hooksPath=") for word in all_arguments)
        or (command == "commit" and any("n" in re.split("[mFCct]", word)[0] for word in short))
    ):
        return "disabled_checks"
    if command != "push":
        return "credentials" if _prints_token("git", arguments) else None
    forced = any(word in {"--force", "--mirror"} or word.startswith("--force-with-lease") for word in rest)
    forced = forced or any("f" in word for word in short) or any(word.startswith("+") for word in rest)
    return "force_push" if forced and not any("n" in word for word in short) else None


def _git_arguments(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """The command of git and its arguments, without the options before it."""
    index = 0
    while index < len(arguments) and arguments[index].startswith("-"):
        index += 2 if arguments[index] in _GIT_OPTIONS_WITH_VALUE else 1
    return arguments[index:]


def _prints_token(name: str, arguments: tuple[str, ...]) -> bool:
    command = (name, *(word for word in arguments if not word.startswith("-")))
    return any(command[: len(token_command)] == token_command for token_command in _TOKEN_COMMANDS)


def _deletes(name: str, arguments: tuple[str, ...]) -> bool:
    if name == "find":
        return "-delete" in arguments or any(
            first in {"-exec", "-execdir"} and second in {"rm", "/bin/rm"} for first, second in pairwise(arguments)
        )
    return name == "rm" and any(
        word == "--recursive" or re.fullmatch(r"-[a-zA-Z]*[rR][a-zA-Z]*", word) for word in arguments
    )


def _deleted_paths(name: str, arguments: tuple[str, ...]) -> list[str]:
    """The paths that a command deletes; for `find`, its starting points."""
    if name != "find":
        return _files(arguments)
    rest = [word for word in arguments if word not in {"-L", "-H", "-P"}]
    ends = next((index for index, word in enumerate(rest) if word.startswith(("-", "(", "!"))), len(rest))
    return rest[:ends]


def _read_files(name: str, arguments: tuple[str, ...]) -> list[str]:
    """The files that a program reads, by its arguments. `curl` sends the files whose names follow an `@`."""
    if name == "curl":
        return [word.partition("@")[2] for word in arguments if "@" in word]
    files = _files(arguments)
    return files[1:] if name in _SEARCH_PROGRAMS else files[:-1] if name in _COPY_PROGRAMS else files


def _files(arguments: tuple[str, ...]) -> list[str]:
    """The arguments that are not options."""
    if "--" in arguments:
        index = arguments.index("--")
        return [*_files(arguments[:index]), *arguments[index + 1 :]]
    return [word for word in arguments if not word.startswith("-")]


def _read_path(tool: str, tool_input: Mapping[str, Any]) -> str | None:
    """The path that a tool for files reads, if it is a file with credentials; else None."""
    path = tool_input.get("file_path") or tool_input.get("path")
    if not isinstance(path, str) or not is_credential(path):
        return None
    reads = _READ_TOOLS.fullmatch(tool) is not None or tool_input.get("command") == "view"
    return path if reads else None


def one_line(text: str) -> str:
    """The beginning of a text from a sandbox, as one line without control characters."""
    return "".join(character if character.isprintable() else " " for character in text[:_MAX_SHOWN_LENGTH])


@lru_cache(1024)
def _pattern_program(pattern: str) -> str:
    return shlex.split(pattern)[0]


@lru_cache(1024)
def _pattern_parts(pattern: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The program, the options and the other arguments of a pattern."""
    name, *rest = shlex.split(pattern)
    options = tuple(word for word in rest if word.startswith("-"))
    return name, options, tuple(word for word in rest if not word.startswith("-"))


def _matches(pattern: str, name: str, arguments: tuple[str, ...]) -> bool:
    program, options, plain_arguments = _pattern_parts(pattern)
    if not fnmatchcase(name, program):
        return False
    if name == "git":
        arguments = _git_arguments(arguments)
    others = [word for word in arguments if not word.startswith("-")]
    if len(others) < len(plain_arguments) or not all(map(fnmatchcase, others, plain_arguments)):
        return False
    return all(
        any(fnmatchcase(word.partition("=")[0], option) or fnmatchcase(word, option) for word in arguments)
        for option in options
    )


@lru_cache(1024)
def _path_pattern(pattern: str) -> re.Pattern[str]:
    """A regular expression for the paths that a pattern matches: the path itself, and everything below it."""
    pattern = pattern.rstrip("/").removeprefix("./")
    body = "".join(_PATH_WILDCARDS.get(token, re.escape(token)) for token in re.findall(r"\*\*/|\*\*|.", pattern))
    anywhere = "" if "/" in pattern else "(?:.*/)?"
    return re.compile(f"{anywhere}{body}(?:/.*)?\\Z", re.DOTALL)


_PATH_WILDCARDS: Final = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
