"""Every name that a command is given, on whatever option: refused before anything is connected, sent or written."""

import socket
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main

from sandherd.cli.app import build
from sandherd.cli.exit_status import MISUSED, run_command
from tests.unit.contracts.hostile_names import HOSTILE_NAMES

FREE: Final = {
    "approvals grant --by": "a person's name, for people",
    "approvals deny --by": "the same",
    "monitor mute --by": "the same",
    "monitor unmute --by": "the same",
    "approvals grant APPROVAL": "an agent chooses it freely; its digest stands for it",
    "approvals deny APPROVAL": "the same",
    "run TASK": "the text of a task",
    "run --image": "has more characters; whether there is such an image its runtime knows",
    "sandboxes create --image": "the same",
    "image build -t": "an image, in the words of docker",
    "image context --libc": "one of two",
    "image context --machine": "one of two",
}
NAMES: Final = {"NAME", "[NAME]", "SANDBOX", "[SANDBOX|TASK]", "TASK", "SANDBOX|TASK", "SANDBOX[:PATH]", "SRC", "DST",
    "EXC", "VARIABLE[=NAME]", "K=V", "APPROVAL", "TYPE", "ERROR", "KIND…", "KIND", "[TASK]…", "[TASK]",
    "BATCH", "PROJECT", "[SANDBOX]"}  # fmt: skip
OTHERS: Final = {None, "TEXT", "SECONDS", "CURSOR", "DAY", "DAYS", "DIR", "FILE", "TIME", "NUMBER", "WHEN", "COMMAND…",
    "PORT", "PATH", "IMAGE", "OS/MACHINE", "VERSION", "-- PROGRAM…", "TOOL", "FIELD=VALUE", "SIZE", "N", "COMMAND",
    "WORDS",
    "DOLLARS", "[LOCAL:]REMOTE…", "URL", "new|all|SEQ|TIME", "GROUP", "KEY=VALUE", "FILE|-", "FIELD", "TIMES", "ZONE",
    "FILE|-- OPTIONS…", "BRANCH", "RULE", "BRANCH|TASK", "ID", "URL|PATH", "LIMITS", "GLOB",
    "DURATION", "ROLE", "PATTERN", "[FILE|-]…", "RULE.THRESHOLD=VALUE"}  # fmt: skip
"""What is no name: numbers, texts, and what names something on the machine of the user. Branches, tickets and
repositories have rules of git: `test_client_repository_options.py`."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a command, as it is typed."""

    command: tuple[str, ...]
    declared: Any

    @property
    def shown(self) -> str:
        typed = self.declared.metavar if self.is_argument else self.declared.opts[-1]
        return f"{' '.join(self.command)} {typed}"

    @property
    def is_argument(self) -> bool:
        return not self.declared.opts[0].startswith("-")


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
    for name, one in (inner or {}).items():
        yield from leaves(one, (*path, name))


BUILT: Final = typer.main.get_command(build())
LEAVES: Final = dict(leaves(BUILT))
PARAMETERS: Final = [Parameter(path, declared) for path, command in LEAVES.items() for declared in command.params]
TESTED: Final = [one for one in PARAMETERS if one.declared.metavar in NAMES and one.shown not in FREE]


GIVEN: Final = {"PROJECT": "shop", "SANDBOX": "sbx-1", "SANDBOX|TASK": "sbx-1", "TASK": "task-1", "NAME": "name-1",
    "APPROVAL": "a1",
    "TEXT": "hello", "NUMBER": "1", "TIME": "5m", "SANDBOX[:PATH]": "sbx-1", "KIND…": "claude", "IMAGE": "python:3.12",
    "SRC": "here", "DST": "sbx-1:there", "DIR": "folder", "FILE": "tasks.yaml",
    "FILE|-- OPTIONS…": "tasks.yaml"}  # fmt: skip
MORE: Final = {
    ("run",): ["--", "true"],
    ("exec",): ["--", "true"],
    ("port-forward",): ["8080"],
    ("context", "add"): ["--url", "nats://h:4222", "--credentials", "tasks.yaml"],
    ("secrets", "set"): ["--file", "tasks.yaml"],
    ("schedules", "create"): ["--cron", "0 3 * * *"],
    ("credentials", "create"): ["--role", "client", "--file", "new.creds"],
    ("identity", "init"): [],
}
AROUND: Final = {"SRC": "{}:x", "DST": "{}:x", "SANDBOX[:PATH]": "{}:x", "K=V": "{}=1", "VARIABLE[=NAME]": "A={}"}
"""Where the name stands in what is typed."""
STORED: Final = {"secrets set NAME", "secrets delete NAME", "run --secret", "sandboxes create --secret"}
"""Names of stored secrets, which may have capital letters and underscores."""
HARMFUL: Final = {"", "*", ">", "a.b", "../x", "a\n", "a\0", "a\u2028b", "a\u202eb", "A", "a b", "-a", "a" * 64}
"""Names that every parameter is given; of the others each tenth, from another one on for each parameter."""
STORED_CHARACTERS: Final = frozenset(string.ascii_letters + string.digits + "_-")
VARIABLE_CHARACTERS: Final = frozenset(string.ascii_letters + "_")


@pytest.fixture
def broker() -> Iterator[socket.socket]:
    """Where the broker would be; nothing responds, and connections are recorded."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: socket.socket) -> None:
    """A folder with what the commands are given, and no stack."""
    for name in ("SANDHERD_CREDENTIALS", "SANDHERD_PROJECT", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SANDHERD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NATS_URL", f"nats://127.0.0.1:{broker.getsockname()[1]}")
    monkeypatch.setattr("sandherd.telemetry.logs.configure", lambda *_: None)
    monkeypatch.setattr("sandherd.cli.herd_session.PATIENCE", 0.0)
    # Built once: to build the command anew takes longer than a refusal.
    monkeypatch.setattr("sandherd.cli.exit_status.build_for", lambda _arguments: BUILT)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").write_text("x")
    (tmp_path / "tasks.yaml").write_text("tasks: [{text: x, harness: {argv: [a]}}]")


def typed(parameter: Parameter, value: str) -> list[str]:
    """The command with this value, and with whatever else it needs."""
    options, arguments = [], []
    for declared in LEAVES[parameter.command].params:
        one = Parameter(parameter.command, declared)
        given = (
            value
            if declared is parameter.declared
            else GIVEN.get(declared.metavar or "")
            if declared.required
            else None
        )
        if declared.metavar == "DST" and parameter.declared.metavar == "SRC":
            given = "there"
        if given is not None and one.is_argument:
            arguments.append(given)
        elif given is not None:
            options += [declared.opts[0], given]
    return [*parameter.command, *options, *arguments, *MORE.get(parameter.command, [])]


def is_hostile(parameter: Parameter, name: str) -> bool:
    """Whether it may not be typed there; what may, may be for another reason."""
    if parameter.is_argument and name in {"--", "--help"}:
        return False  # no argument, but what the command line itself knows
    if parameter.shown in STORED:
        return not (set(name) <= STORED_CHARACTERS and name[:1].isalnum() and len(name) <= 64)
    if parameter.declared.metavar == "K=V":
        return "=" not in name and not (name and set(name) <= VARIABLE_CHARACTERS)
    if parameter.declared.metavar in {"SRC", "DST", "SANDBOX[:PATH]"}:
        return ":" not in name
    return True


def connections(broker: socket.socket) -> int:
    found = 0
    while True:
        try:
            broker.accept()[0].close()
        except BlockingIOError:
            return found
        found += 1


def test_every_parameter_is_declared_as_a_name_or_not() -> None:
    """A new one fails this, until its allowed values are declared."""
    assert {one.declared.metavar for one in PARAMETERS} <= NAMES | OTHERS
    assert FREE.keys() <= {one.shown for one in PARAMETERS}
    assert len(TESTED) > 70


@pytest.mark.parametrize("parameter", TESTED, ids=lambda parameter: parameter.shown)
def test_hostile_name_is_refused_before_any_action(
    parameter: Parameter, broker: socket.socket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The usage error is one line; there is no connection, and no file is written."""
    before = sorted(tmp_path.rglob("*"))
    some = [*HARMFUL, *HOSTILE_NAMES[TESTED.index(parameter) % 10 :: 10]]
    for name in (name for name in some if is_hostile(parameter, name)):
        value = AROUND.get(parameter.declared.metavar, "{}").format(name)
        status = run_command(typed(parameter, value))
        shown = capsys.readouterr()
        assert status == MISUSED, f"{name!r}: {shown.err}"
        assert shown.out == ""
        assert shown.err.count("\n") == 1
        assert "broker" not in shown.err
    assert connections(broker) == 0
    assert sorted(tmp_path.rglob("*")) == before
