"""Programs that start another one, such as `env`, `uv run` or `python -m`: what they start. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

Argv = tuple[str, ...]

_MAX_NESTED: Final = 8
"""Maximum number of launchers of which each starts the next one."""
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
"""Matches the assignment of a variable before a command."""
_KEYWORDS: Final = frozenset({"if", "then", "elif", "else", "while", "until", "do", "{", "!", "time"})
"""Keywords of a shell after which a command follows."""
_PYTHON: Final = re.compile(r"(?:python|pypy)[0-9.]*")
_PYTHON_OPTIONS_WITH_VALUE: Final = frozenset({"-X", "-W"})


@dataclass(frozen=True)
class _Launcher:
    """How a launcher's arguments begin, before the program that it starts."""

    options_with_value: frozenset[str] = frozenset()
    """Options that have the next argument as their value."""
    positional: int = 0
    """Number of arguments of its own after the options."""


_PLAIN: Final = _Launcher()
"""A launcher that is directly followed by its program, except for options without values."""
_PYTHON_ENVIRONMENT: Final = _Launcher(
    frozenset({"--with", "--python", "-p", "--extra", "--group", "--project", "--directory", "--env-file", "--package"})
)
_CONDA: Final = _Launcher(frozenset({"-n", "--name", "-p", "--prefix", "--cwd"}))
_NODE: Final = _Launcher(frozenset({"-p", "--package"}))

_LAUNCHERS: Final[Mapping[str, _Launcher]] = {
    **dict.fromkeys(("nohup", "exec", "command", "setsid", "unbuffer", "stdbuf", "cross-env", "dotenv"), _PLAIN),
    "env": _Launcher(frozenset({"-u", "--unset", "-C", "--chdir"})),
    "sudo": _Launcher(frozenset({"-u", "-g", "-h", "-p"})),
    "nice": _Launcher(frozenset({"-n"})),
    "ionice": _Launcher(frozenset({"-c", "-n"})),
    "timeout": _Launcher(frozenset({"-s", "--signal", "-k", "--kill-after"}), positional=1),
    "xvfb-run": _Launcher(frozenset({"-s", "-n", "-e", "-f"})),
    "uvx": _Launcher(frozenset({"--from", "--with", "--python", "-p"})),
    **dict.fromkeys(("npx", "bunx", "pnpx"), _NODE),
}
"""Launchers by the name of their program."""
_WITH_SUBCOMMAND: Final[Mapping[tuple[str, str], _Launcher]] = {
    ("uv", "run"): _PYTHON_ENVIRONMENT,
    **dict.fromkeys(((tool, "run") for tool in ("poetry", "pdm", "pipenv", "hatch", "rye", "pixi")), _PLAIN),
    **dict.fromkeys(((tool, "run") for tool in ("conda", "mamba", "micromamba")), _CONDA),
    **dict.fromkeys((("pnpm", "exec"), ("pnpm", "dlx"), ("yarn", "exec"), ("yarn", "dlx")), _NODE),
    **dict.fromkeys((("npm", "exec"), ("npm", "x"), ("bun", "x")), _NODE),
    **dict.fromkeys((("bundle", "exec"), ("mise", "exec"), ("asdf", "exec")), _PLAIN),
    ("direnv", "exec"): _Launcher(positional=1),
    ("coverage", "run"): _Launcher(frozenset({"--source", "--rcfile", "--include", "--omit", "--data-file"})),
}
"""Launchers by the name of their program and its first argument."""


def name_of(program: str) -> str:
    """The name of a program, without its folder."""
    return PurePosixPath(program).name


def started_program(argv: Argv) -> Argv:
    """The program that this one starts, with its arguments; `argv` itself if it is not a known launcher."""
    for _ in range(_MAX_NESTED):
        while argv and (_ASSIGNMENT.match(argv[0]) or argv[0] in _KEYWORDS):
            argv = argv[1:]
        inner = _launched_program(argv)
        if inner is None:
            return argv
        argv = inner
    return argv


def _launched_program(argv: Argv) -> Argv | None:
    """The program that a launcher starts, with its arguments; None for any other program."""
    if not argv:
        return None
    name = name_of(argv[0])
    if _PYTHON.fullmatch(name):
        rest = _without_options(argv[1:], _PYTHON_OPTIONS_WITH_VALUE)
        return rest[1:] if len(rest) > 1 and rest[0] == "-m" else None
    if (launcher := _LAUNCHERS.get(name)) is not None:
        return _without_module_option(_without_options(argv[1:], launcher.options_with_value)[launcher.positional :])
    if len(argv) > 1 and (launcher := _WITH_SUBCOMMAND.get((name, argv[1]))) is not None:
        return _without_module_option(_without_options(argv[2:], launcher.options_with_value)[launcher.positional :])
    return None


def _without_module_option(rest: Argv) -> Argv:
    return rest[1:] if rest[:1] == ("-m",) else rest


def _without_options(argv: Argv, options_with_value: frozenset[str]) -> Argv:
    """The arguments after the options: from the first that is not an option, from `-m`, or after `--`."""
    index = 0
    while index < len(argv) and argv[index].startswith("-") and argv[index] != "-m":
        if argv[index] == "--":
            return argv[index + 1 :]
        index += 2 if argv[index] in options_with_value else 1
    return argv[index:]
