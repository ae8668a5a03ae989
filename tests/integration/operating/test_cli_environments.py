"""Every command in a hostile environment: with an unusable home, or an output that can't be written."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import typer.main

from sandherd.cli.app import build
from sandherd.stack import down, up
from tests.integration.operating.forked_commands import Case
from tests.patience import PATIENCE

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]

PROGRAM = "tests.integration.operating.forked_commands"
NAME = 'jörg "a", 日本'
STRANGE = "é→日"
ENDS_THE_STACK = ("down",)
WITHOUT_HOME = {
    ("image", "build"),
    ("image", "context"),
    ("identity", "init"),
    ("identity", "push"),
    ("context", "list"),
    ("webhooks", "secret"),
}
"""Commands that use no home: they succeed, or fail for another reason."""
REPORTS = {"doctor", "audit", "status"}
"""Commands whose result is a list of problems, each with its remedy; their status is 1."""
NOT_IN_PROC = WITHOUT_HOME | {("down",), ("config", "show"), ("harness", "list"), ("context", "show")}
"""Commands that also have nothing to do if a home is empty, as they only read it."""


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
    for name, below in (inner or {}).items():
        yield from leaves(below, (*path, name))


LEAVES = dict(leaves(typer.main.get_command(build())))


def sample(kind: Any, folder: Path) -> str:
    """A value of this type: an existing folder, the first of an enumeration, else a name that does not exist."""
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return next(iter(kind)).value
    return str(folder) if "Path" in str(kind) else "task-x"


def words(path: tuple[str, ...], above: Path) -> list[str]:
    """The command with a value for all that it requires. Its folders exist, and no other command uses them."""
    found, folder = list(path), above / "-".join(path)
    folder.mkdir(exist_ok=True)
    (folder / "other").touch()
    for parameter in LEAVES[path].params:
        if not parameter.required:
            continue
        value = sample(parameter.type_descriptor.annotation, folder)
        if path == ("projects", "show"):
            value = "default"  # an unknown project is only an error after a request to the history
        found += [value] if parameter.param_type_name == "argument" else [parameter.opts[0], value]
    return found


def played(cases: list[Case], folder: Path) -> list[Case]:
    folder.mkdir()
    command = [sys.executable, "-m", PROGRAM, str(folder)]
    given = json.dumps([asdict(case) for case in cases])
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=6 * PATIENCE)
    assert done.returncode == 0, done.stderr
    return [Case(**case) for case in json.loads(done.stdout)]


def error_of(case: Case) -> str:
    """The error of a command: one line with the remedy, never a traceback. Raises `AssertionError`."""
    status, _, error = case.done
    assert "Traceback" not in error, (case.words, error)
    assert "Exception ignored" not in error, (case.words, error)
    if status:
        assert status in {1, 2}, (case.words, status, error)
        lines = [line for line in error.splitlines() if line.startswith("sandherd: ")]
        assert len(lines) == 1 or REPORTS & {*case.words}, (case.words, error)
        assert all(";" in line for line in lines), (case.words, lines)
    return error


@pytest.fixture
def surroundings() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}


def test_unusable_home_is_one_line(tmp_path: Path, surroundings: dict[str, str]) -> None:
    """A file, a place where nothing can be created, and an invalid UTF-8 name lead to status 1 or 2, and a remedy.

    Each command has the first of these homes, or one of the others.
    """
    (tmp_path / "file").touch()
    (tmp_path / "there").mkdir()
    homes = (str(tmp_path / "file"), "/proc/none", str(tmp_path / "file"), str(tmp_path / "j\udcf6rg"))
    chosen = [homes[number % len(homes)] for number in range(len(LEAVES))]
    given = [os.fsencode(home).decode("utf-8", "surrogateescape") for home in chosen]
    cases = [
        Case(["--home", home, *words(path, tmp_path / "there")], surroundings)
        for home, path in zip(given, LEAVES, strict=True)
    ]
    for path, home, case in zip(LEAVES, chosen, played(cases, tmp_path / "played"), strict=True):
        error_of(case)
        assert case.done[0] or path in (NOT_IN_PROC if home.startswith("/proc/") else WITHOUT_HOME), case


@pytest.fixture(scope="module")
def stack() -> Iterator[Path]:
    """The home of a running stack, with a name that is not ASCII and has separators."""
    above = Path(tempfile.mkdtemp(prefix="strange-"))
    above.chmod(0o755)
    home = above / NAME
    try:
        asyncio.run(up(home))
        yield home
    finally:
        asyncio.run(down(home))
        shutil.rmtree(above, ignore_errors=True)


@pytest.fixture
def live(stack: Path, tmp_path: Path) -> list[tuple[str, ...]]:
    """The commands that are run with a stack, with a folder that no other command uses."""
    (tmp_path / "there").mkdir()
    return [path for path in LEAVES if path != ENDS_THE_STACK]


@pytest.mark.parametrize("each", [3, pytest.param(1, marks=pytest.mark.long)])
def test_unwritable_output_is_one_line_and_a_failure_and_ascii_output_is_escaped(
    stack: Path, live: list[tuple[str, ...]], tmp_path: Path, surroundings: dict[str, str], each: int
) -> None:
    """Output to /dev/full or to a closed descriptor fails for every command, also for `--help`.

    A command has one of them, and its `--help` the other; in `make test` every third command. With a terminal whose
    encoding is ASCII no command fails for missing letters. `up` finds the stack running and ready, although it was
    started with a TMPDIR that the commands don't have.
    """
    environ = surroundings | {"SANDHERD_HOME": str(stack)}
    task = ["run", STRANGE, "--", "echo", STRANGE]
    (done,) = played([Case(task, environ)], tmp_path / "task")
    assert done.done[0] == 0, done
    given, outputs = [words(path, tmp_path / "there") for path in live], ("full", "closed")
    escaped = [Case(line, environ, encoding="ascii") for line in given]
    more = [["tasks", "list"], ["tasks", "list", "-o", "json"], ["status"], ["--home", str(stack), "status"]]
    escaped += [Case(line, environ, encoding="ascii") for line in more]
    failing = [Case(line, environ, outputs[number % 2]) for number, line in enumerate(given)][::each]
    helps = [Case([*path, "--help"], environ, outputs[1 - number % 2]) for number, path in enumerate(LEAVES)][::each]
    found = played([*escaped, *failing, *helps], tmp_path / "played")
    check_escaped(found[: len(escaped)], live)
    failed = found[len(escaped) : len(escaped) + len(failing)]
    for stored, case in zip(found[: len(given) : each], failed, strict=True):
        error = error_of(case)
        if stored.done[1] and not stored.done[0]:
            assert case.done[0] == 1, case
            # Commands run at the same time: what another one deletes or creates may or may not exist.
            changes = {"delete", "create", "revoke", "init", "context", "projects"} & {*case.words}
            assert "could not be written" in error or changes, case
    for case in found[len(escaped) + len(failing) :]:
        assert case.done[0] == 1, case
        assert "could not be written" in error_of(case), case


def check_escaped(found: list[Case], live: list[tuple[str, ...]]) -> None:
    """Check each command that was run with an ASCII terminal, and then lists of tasks."""
    for case in found:
        error_of(case)
        assert case.done[1].isascii()
        assert case.done[2].isascii()
    running = found[live.index(("up",))]
    assert running.done[0] == 0, running
    table, document = found[len(live)], found[len(live) + 1]
    assert table.done[0] == document.done[0] == 0
    assert json.loads(document.done[1])["tasks"][0]["text"] == STRANGE
    assert r"\u2192" in table.done[1]


def test_real_process_with_closed_streams_and_ascii_locale_fails_cleanly(
    stack: Path, surroundings: dict[str, str]
) -> None:
    """A shell starts it with `>&-`, `2>&-`, `<&-`, `>/dev/full`, and PYTHONIOENCODING and LC_ALL without UTF-8."""
    sandherd = Path(sys.executable).with_name("sandherd")
    environ = surroundings | {"SANDHERD_HOME": str(stack)}
    for redirected, status in ((">&-", 1), (">/dev/full", 1), ("2>&-", 0), ("<&-", 0)):
        script = f'"{sandherd}" tasks list {redirected}'
        done = subprocess.run(["/bin/sh", "-c", script], env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == status, done
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    for more in ({"PYTHONIOENCODING": "ascii"}, ascii_only):
        command = [str(sandherd), "tasks", "list"]
        done = subprocess.run(command, env=environ | more, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr
        assert bool(done.returncode) == done.stderr.startswith("sandherd: "), done
