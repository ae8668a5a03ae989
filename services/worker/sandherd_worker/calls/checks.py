"""Finds commands that check the work (tests, linters, type checks, builds), and whether they passed. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sandherd.contracts.events.call_facts import CheckKind, ToolOutcome
from sandherd.shell.launchers import Argv
from sandherd.shell.programs import RunProgram, programs_of

_PRECEDENCE: Final[Sequence[CheckKind]] = ("test", "build", "types", "lint")
"""The kinds of checks by precedence: of several checks in a command, the first by this order is reported."""
_NO_RUN: Final = frozenset({"--version", "-V", "--help", "-h", "--collect-only", "--co", "--list", "--listTests"})
"""Options with which a program checks nothing."""
_PROGRAMS: Final[Mapping[str, CheckKind]] = {
    **dict.fromkeys(("pytest", "py.test", "tox", "nox", "nose2", "unittest", "trial", "behave", "bats"), "test"),
    **dict.fromkeys(("jest", "vitest", "mocha", "ava", "karma", "tap", "playwright", "cypress"), "test"),
    **dict.fromkeys(("rspec", "phpunit", "pest", "ctest", "busted", "gotestsum"), "test"),
    **dict.fromkeys(("flake8", "pylint", "eslint", "oxlint", "stylelint", "golangci-lint", "staticcheck"), "lint"),
    **dict.fromkeys(("rubocop", "shellcheck", "hadolint", "yamllint", "markdownlint", "ktlint", "bandit"), "lint"),
    **dict.fromkeys(("pre-commit", "swiftlint", "ansible-lint", "lint-imports", "standard", "xo"), "lint"),
    **dict.fromkeys(("mypy", "dmypy", "pyright", "basedpyright", "pytype", "pyre", "tsc", "vue-tsc"), "types"),
    **dict.fromkeys(("svelte-check", "flow", "phpstan", "psalm", "sorbet"), "types"),
    **dict.fromkeys(("ninja", "webpack", "rollup", "esbuild", "msbuild", "xcodebuild", "javac"), "build"),
    **dict.fromkeys(("py_compile", "compileall", "build"), "build"),
}
_SUBCOMMANDS: Final[Mapping[str, Mapping[str, CheckKind]]] = {
    "cargo": {"test": "test", "t": "test", "nextest": "test", "clippy": "lint", "check": "types", "build": "build"},
    "go": {"test": "test", "vet": "lint", "build": "build"},
    "ruff": {"check": "lint"},
    "biome": {"check": "lint", "lint": "lint", "ci": "lint"},
    "ty": {"check": "types"},
    "deno": {"test": "test", "lint": "lint", "check": "types"},
    "dotnet": {"test": "test", "build": "build"},
    "mix": {"test": "test", "compile": "build", "credo": "lint", "dialyzer": "types"},
    "swift": {"test": "test", "build": "build"},
    "bazel": {"test": "test", "build": "build"},
    "zig": {"test": "test", "build": "build"},
    "flutter": {"test": "test", "analyze": "lint", "build": "build"},
    "dart": {"test": "test", "analyze": "lint"},
    "stack": {"test": "test", "build": "build"},
    "cabal": {"test": "test", "build": "build"},
    "sbt": {"test": "test", "compile": "build"},
    "meson": {"test": "test", "compile": "build"},
    "cmake": {"--build": "build"},
    "docker": {"build": "build"},
    "uv": {"build": "build"},
    "poetry": {"build": "build"},
    "vite": {"build": "build"},
    "next": {"build": "build", "lint": "lint"},
    "bun": {"test": "test", "build": "build"},
}
_FORMATTERS: Final[Mapping[tuple[str, ...], frozenset[str]]] = {
    ("black",): frozenset({"--check", "--diff"}),
    ("isort",): frozenset({"--check", "--check-only", "-c", "--diff"}),
    ("ruff", "format"): frozenset({"--check", "--diff"}),
    ("prettier",): frozenset({"--check", "-c", "--list-different", "-l"}),
    ("cargo", "fmt"): frozenset({"--check"}),
    ("deno", "fmt"): frozenset({"--check"}),
    ("gofmt",): frozenset({"-l", "-d"}),
    ("mix", "format"): frozenset({"--check-formatted"}),
}
"""Programs that change files, unless one of these options makes them a check."""
_TARGETS: Final = frozenset(
    {"make", "gmake", "just", "task", "rake", "gradle", "gradlew", "mvn", "mvnw", "nx", "turbo"}
)
"""Programs that run targets, whose names show what they do."""
_SCRIPTS: Final = frozenset({"npm", "pnpm", "yarn", "bun", "composer"})
"""Programs that run a project's scripts: `npm test`, `npm run lint`."""
_BUILDS_BY_DEFAULT: Final = frozenset({"make", "gmake"})
_TARGET_VALUES: Final = frozenset({"-C", "-f", "--directory", "--file", "--prefix", "--filter", "-w", "--workspace"})
_PYTHON: Final = re.compile(r"python[0-9.]*")
_NAME_PART: Final = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+")
_NAME_PARTS: Final[Sequence[tuple[CheckKind, frozenset[str]]]] = (
    ("types", frozenset({"types", "type", "typecheck", "typing", "mypy", "pyright", "tsc"})),
    ("lint", frozenset({"lint", "eslint", "ruff", "flake8", "clippy", "style", "spotless", "checkstyle", "detekt"})),
    ("test", frozenset({"test", "tests", "check", "spec", "specs", "e2e", "unit", "integration", "verify", "jest"})),
    ("test", frozenset({"t", "tst", "pytest", "vitest", "ci"})),
    ("build", frozenset({"build", "compile", "dist", "bundle", "package", "assemble", "all"})),
)
_FORMAT_PARTS: Final = frozenset({"format", "fmt", "formatting"})


@dataclass(frozen=True)
class WorkCheck:
    """A check that a command runs."""

    kind: CheckKind
    success_shown: bool
    """Whether the success of the whole command shows that the check has passed."""
    failure_shown: bool
    """Whether the failure of the whole command shows that the check has failed."""

    def passed(self, outcome: ToolOutcome | None, exit_code: int | None) -> bool | None:
        """Whether the check has passed, from the end of its call; None if that is unknown.

        It is unknown without an exit status: the command may still run, or its harness reports every end as a success.
        """
        if exit_code is None:
            return None
        if outcome == "ok" and self.success_shown:
            return True
        return False if outcome == "failed" and self.failure_shown else None


def check_of(tool_input: Mapping[str, Any]) -> WorkCheck | None:
    """The check that a call with this input runs; the first by `_PRECEDENCE` if it runs several."""
    found = [
        WorkCheck(kind, program.success_shown, program.failure_shown)
        for program in programs_of(tool_input)
        if (kind := kind_of(program)) is not None
    ]
    return min(found, key=lambda check: _PRECEDENCE.index(check.kind), default=None)


def kind_of(program: RunProgram) -> CheckKind | None:
    """The kind of check that a program runs; None if it runs no check."""
    name, arguments = program.name, program.argv[1:]
    if not _NO_RUN.isdisjoint(arguments):
        return None
    if (formatter := _formatter(name, arguments)) is not None:
        return None if formatter.isdisjoint(arguments) else "lint"
    return _PROGRAMS.get(name) or _of_subcommand(name, arguments) or _of_target(name, arguments)


def _of_subcommand(name: str, arguments: Argv) -> CheckKind | None:
    if _PYTHON.fullmatch(name) and arguments[:2] == ("manage.py", "test"):
        return "test"
    kind = _SUBCOMMANDS.get(name, {}).get(_first(arguments))
    return "build" if name == "cargo" and kind == "test" and "--no-run" in arguments else kind


def _of_target(name: str, arguments: Argv) -> CheckKind | None:
    """The kind of a target or script, by its name."""
    if name in _SCRIPTS:
        return _of_script(name, _targets(arguments))
    if name not in _TARGETS:
        return None
    targets = _targets(arguments)
    return _first_by_precedence(targets) if targets else "build" if name in _BUILDS_BY_DEFAULT else None


def _formatter(name: str, arguments: Argv) -> frozenset[str] | None:
    return _FORMATTERS.get((name,)) or _FORMATTERS.get((name, _first(arguments)))


def _of_script(name: str, parts: Sequence[str]) -> CheckKind | None:
    """The kind of a script. Without `run`, npm runs only some scripts; other names are commands of npm."""
    if not parts:
        return None
    if parts[0] in {"run", "run-script"}:
        return _first_by_precedence(parts[1:2])
    return _first_by_precedence(parts[:1]) if name != "npm" or parts[0] in {"test", "t", "tst"} else None


def _targets(arguments: Argv) -> list[str]:
    """The arguments that are not options, assignments, or values of options."""
    following = zip(("", *arguments), arguments, strict=False)
    return [
        word
        for before, word in following
        if before not in _TARGET_VALUES and not word.startswith("-") and "=" not in word
    ]


def _first_by_precedence(names: Iterable[str]) -> CheckKind | None:
    kinds = {kind for name in names if (kind := _of_name(name)) is not None}
    return min(kinds, key=_PRECEDENCE.index, default=None)


def _of_name(name: str) -> CheckKind | None:
    """The kind of a target or script, by the parts of its name: `test:unit`, `lint`, `testDebugUnitTest`."""
    parts = {word.lower() for word in _NAME_PART.findall(name[:200])}
    if parts & _FORMAT_PARTS:
        return "lint" if "check" in parts else None
    return next((kind for kind, known in _NAME_PARTS if parts & known), None)


def _first(arguments: Argv) -> str:
    """The subcommand; cargo's toolchain (`+nightly`) and options before it are skipped."""
    return next((word for word in arguments if word == "--build" or not word.startswith(("-", "+"))), "")
