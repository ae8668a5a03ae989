"""The command line: help with examples that parse, exit statuses, and errors in one line that name what helps."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from sandherd.cli.app import build
from sandherd.cli.exit_status import run_command
from sandherd.cli.home_option import with_home
from sandherd.stack.home import Home, ProcessRecord, StackPhase, StackRecord, ourselves, write_record

ROOT: Any = typer.main.get_command(build())


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group, with the words that lead to it."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


ALL = dict(commands(ROOT))
EXAMPLES = [
    line.strip()
    for command in ALL.values()
    for line in (command.epilog or "").splitlines()
    if line.strip().startswith("sandherd ")
]


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a stack, and logs left to the tests."""
    for name in ("SANDHERD_CREDENTIALS", "SANDHERD_PROJECT", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SANDHERD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:9")
    monkeypatch.setattr("sandherd.telemetry.logs.configure", lambda *_: None)
    monkeypatch.setattr("sandherd.cli.herd_session.PATIENCE", 0.0)


def wanted_commands() -> set[str]:
    groups = {
        "tasks": "list wait get submit cancel retry",
        "sandboxes": "list get logs create pause resume extend terminate prune",
        "services": "logs",
        "context": "list show add use remove",
        "dead": "list show requeue",
        "approvals": "list grant deny",
        "monitor": "report show mute unmute replay",
        "harness": "install list",
        "image": "build context",
        "subscriptions": "create list delete",
        "webhooks": "create list show test rotate replay delete secret deliver",
        "credentials": "create revoke",
        "secrets": "set list delete",
        "tokens": "create list revoke",
        "artifacts": "list get",
        "branches": "list show fetch push pr merge delete diff",
        "projects": "list show create set",
        "budgets": "list show grant set",
        "history": "status hold release archives restore verify",
        "schedules": "create list show pause resume trigger delete",
        "identity": "init push",
    }
    single = "up down status run exec agent-server cp ls runtimes events trajectory logs send audit doctor provision"
    single += " backup restore reread files diff top costs port-forward open"
    single += " overview stats transcript compare search replay"
    found = set(single.split()) | {"config show"}
    return found | {f"{group} {verb}" for group, verbs in groups.items() for verb in verbs.split()}


def test_command_line_has_exactly_the_designed_commands() -> None:
    """No command is missing, and no other exists."""
    leaves = {" ".join(path) for path, command in ALL.items() if not hasattr(command, "commands")}
    assert leaves == wanted_commands()


@pytest.mark.parametrize("path", sorted(ALL), ids=" ".join)
def test_every_help_shows_an_example(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` says what a command does and shows an example of that very command."""
    assert run_command([*path, "--help"]) == 0
    shown = capsys.readouterr().out
    assert ALL[path].help
    assert f"  sandherd {' '.join(path)}".rstrip() in shown


def test_no_example_has_a_variable_that_the_users_shell_expands() -> None:
    """A variable of the sandbox is in single quotes: in double quotes it would be empty before the task is sent."""
    # In turn: what is outside single quotes is expanded.
    assert not [line for line in EXAMPLES if "$" in "".join(line.split("'")[::2])]


@pytest.mark.parametrize("line", EXAMPLES)
def test_every_example_parses(line: str) -> None:
    """The examples in help texts are valid command lines."""
    command, context = ROOT, None
    words = shlex.split(line)[1:]
    while True:
        context = command.make_context(command.name or "sandherd", words, parent=context)
        if not hasattr(command, "commands"):
            break
        _, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
    assert context.params


@pytest.mark.parametrize("path", sorted(path for path in ALL if not hasattr(ALL[path], "commands")), ids=" ".join)
def test_every_reply_is_available_as_json(path: tuple[str, ...]) -> None:
    """`-o json|table` is an option of every command."""
    options = {name: parameter for parameter in ALL[path].params for name in parameter.opts}
    assert "-o" in options
    assert "--output" in options


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["tasks"],
        ["tasks", "get"],
        ["tasks", "list", "--limit", "0"],
        ["tasks", "list", "--state", "dancing"],
        ["tasks", "list", "-o", "xml"],
        ["run"],
        ["run", "no program", "--harness", "command"],
        ["run", "x", "--env", "nonsense name=1", "--", "true"],
        ["run", "x", "--env", "SURELY_NOT_SET_HERE", "--", "true"],
        ["run", "x", "--linger", "-1", "--", "true"],
        ["run", "x", "--file", "/does/not/exist", "--", "true"],
        ["run", "x", "--harness", "A Wizard", "--", "true"],
        ["run", "x", "--harness", "acp"],
        ["run", "x", "--harness", "claude", "--", "true"],
        ["run", "x", "--model", "m", "--", "true"],
        ["run", "x", "--runtime", "a.b", "--", "true"],
        ["run", "", "--", "true"],
        ["run", "x", "--priority", "urgent", "--", "true"],
        ["run", "x", "--kind", "miracle", "--", "true"],
        ["run", "x", "--permit", "all", "--", "true"],
        ["run", "x", "--forbid-path", "/etc", "--", "true"],
        ["run", "x", "--forbid-command", "-rf", "--", "true"],
        ["run", "x", "--deadline", "soon", "--", "true"],
        ["run", "x", "--attempts", "0", "--", "true"],
        ["run", "x", "--attempts", "21", "--", "true"],
        ["run", "x", "--attempt-timeout", "a while", "--", "true"],
        ["run", "x", "--task-timeout", "0s", "--", "true"],
        ["run", "x", "--retry-also", "bad_luck", "--", "true"],
        ["run", "x", "--on-retry", "forget", "--", "true"],
        ["run", "x", "--depends-on", "a b", "--", "true"],
        ["run", "x", "--profile", "a.b", "--", "true"],
        ["run", "x", "--memory", "much", "--", "true"],
        ["run", "x", "--repo", "/does/not/exist", "--", "true"],
        ["run", "x", "--repo", "git@git.example.org:demo/web", "--", "true"],
        ["run", "x", "--repo", "https://ada:secret@git.example.org/demo/web", "--", "true"],
        ["run", "x", "--repo", "https://git.example.org/demo/web", "--base", "-x", "--", "true"],
        ["run", "x", "--repo", "https://git.example.org/demo/web", "--dir", ".", "--", "true"],
        ["run", "x", "--repo", "https://git.example.org/demo/web", "--join", "--", "true"],
        ["run", "x", "--base", "a..b", "--", "true"],
        ["branches", "show", "a..b"],
        ["branches", "fetch"],
        ["branches", "list", "--state", "dancing"],
        ["branches", "diff", "feature/x", "-o", "name"],
        ["tasks", "submit"],
        ["tasks", "submit", "/does/not/exist"],
        ["sandboxes", "create", "--ttl", "long"],
        ["sandboxes", "create", "--memory", "1"],
        ["sandboxes", "extend", "sbx-a"],
        ["sandboxes", "extend", "sbx-a", "much"],
        ["exec", "sbx-a"],
        ["exec", "sbx-a", "--cwd", "", "--", "ls"],
        ["exec", "sbx-a", "--timeout", "2d", "--", "ls"],
        ["exec", "sbx-a", "--env", "no name=1", "--", "ls"],
        ["exec", "sbx-a", "--status", "A"],
        ["port-forward", "sbx-a"],
        ["port-forward", "sbx-a", "http"],
        ["port-forward", "sbx-a", "1:2:3"],
        ["port-forward", "sbx-a", "0"],
        ["port-forward", "sbx-a", "8080:65536"],
        ["cp", "x"],
        ["cp", "here", "there"],
        ["cp", "sbx-a:x", "sbx-b:x"],
        ["cp", "/does/not/exist", "sbx-a:x"],
        ["cp", "/", "sbx-a:x"],
        ["events", "sbx-a", "--type", "agent.tool_used"],
        ["events", "sbx-a", "--since", "yesterday"],
        ["dead", "show", "0"],
        ["dead", "show", "x"],
        ["send", "sbx-a"],
        ["approvals", "list", "--state", "perhaps"],
        ["approvals", "list", "--sandbox", "a.b"],
        ["approvals", "grant", "sbx-a"],
        ["approvals", "grant", "sbx-a", ""],
        ["approvals", "deny", "sbx-a", "x" * 129],
        ["--project", "x"],
    ],
    ids=" ".join,
)
def test_usage_error_is_status_2_in_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The line has the remedy, and nothing is sent."""
    assert run_command(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert "; " in shown.err


HOSTILE = ["*", ">", "a.b", "a b", "", "A", "sbx-*", "a" * 64, "sbx-a\n", "../x", "-", "é"]
NAMED = [
    ["tasks", "get"],
    ["tasks", "cancel"],
    ["tasks", "retry"],
    ["sandboxes", "get"],
    ["sandboxes", "terminate"],
    ["sandboxes", "pause"],
    ["sandboxes", "resume"],
    ["ls"],
    ["events"],
    ["trajectory"],
    ["logs"],
    ["audit"],
]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize(
    "words",
    [*NAMED, ["send"], ["exec"], ["sandboxes", "extend"], ["approvals", "grant"], ["approvals", "deny"]],
    ids=" ".join,
)
def test_hostile_name_is_refused_before_any_request(
    words: list[str], name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that could lead to another tree is refused without a connection."""
    monkeypatch.setattr("sandherd.client.herd.Herd.connect", None)
    more = {"send": ["hello"], "exec": ["ls"], "extend": ["2h"], "grant": ["a1"], "deny": ["a1"]}.get(words[-1], [])
    assert run_command([*words, "--", name, *more]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("project", ["*", "a.b", "A"])
def test_a_hostile_project_is_refused(project: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A hostile name of a project is refused."""
    assert run_command(["tasks", "list", "--project", project]) == 2
    assert "project" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        *([*words, "sbx-a"] for words in NAMED),
        ["tasks", "list"],
        ["sandboxes", "list"],
        ["dead", "list"],
        ["dead", "requeue", "1"],
        ["send", "sbx-a", "x"],
        ["run", "x", "--", "true"],
        ["audit"],
        ["runtimes"],
        ["exec", "sbx-a", "--", "ls"],
        ["exec", "sbx-a", "--status", "exc-a"],
        ["cp", "/etc/hostname", "sbx-a:"],
        ["cp", "sbx-a:x", "."],
        ["sandboxes", "create"],
        ["sandboxes", "extend", "sbx-a", "2h"],
        ["sandboxes", "prune"],
    ],
    ids=" ".join,
)
def test_missing_broker_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One line states what to start or set, without a traceback."""
    assert run_command(words) == 1
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert "sandherd up" in shown.err


def test_invalid_credential_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error is one line with the file and the setting."""
    path = tmp_path / "x.creds"
    path.write_text("hello")
    assert run_command(["--credentials", str(path), "tasks", "list"]) == 1
    shown = capsys.readouterr().err
    assert str(path) in shown
    assert "SANDHERD_CREDENTIALS" in shown


def test_start_is_quick() -> None:
    """`--help` loads neither the NATS client nor pydantic nor rich."""
    code = (
        "import sys\nfrom sandherd.cli.exit_status import run_command\nassert run_command(['--help']) == 0\n"
        "print([name for name in ('nats', 'pydantic', 'rich', 'asyncpg', 'sandherd.stack') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_missing_stack_is_reported_with_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    """`status` without a stack is status 1 and names the command that starts one; `down` finds nothing to end."""
    assert run_command(["status"]) == 1
    assert "sandherd up" in capsys.readouterr().err
    assert run_command(["down"]) == 0
    capsys.readouterr()
    assert run_command(["status", "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["phase"] == "stopped"
    assert run_command(["down", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["ended"] == []


@pytest.mark.parametrize("words", [["status"], ["doctor"], ["doctor", "-o", "json"], ["tasks", "list"]], ids=" ".join)
@pytest.mark.parametrize("given", [["--home", "{}"], ["--home={}"], ["--credentials", "x.creds", "--home", "{}"]])
def test_remedies_have_the_home_that_was_given(
    words: list[str], given: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Without the option, their commands would start or examine another home."""
    home = tmp_path / "a home"
    assert run_command([*(word.format(home) for word in given), *words]) == 1
    shown = capsys.readouterr()
    text = shown.out + shown.err
    assert "`sandherd up`" not in text
    if words[0] != "tasks" and "x.creds" not in given:
        assert f"`sandherd --home '{home}' up`" in " ".join(text.split())


def test_help_pages_and_options_of_a_text_get_no_home() -> None:
    """They are the same with each home."""
    text = "see `sandherd run --help`, `sandherd --home DIR` or `sandherd up`"
    assert with_home(text, None) == text
    assert with_home(text, Path("x")) == "see `sandherd run --help`, `sandherd --home DIR` or `sandherd --home x up`"


def test_unsupervised_stack_is_reported_with_the_remedy(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The first line does not report it as stopped while it runs, and names the recovery."""
    place = Home(tmp_path / "orphaned")
    place.make()
    killed = ProcessRecord(pid=ourselves().pid, mark="another")
    write_record(place, StackRecord(phase=StackPhase.READY, supervisor=killed, processes={"nats": ourselves()}))
    assert run_command(["--home", str(place.path), "status"]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("unsupervised ")
    assert f"`sandherd --home {place.path} up`" in captured.err


def test_help_states_the_name_of_a_file_in_the_work_tree(capsys: pytest.CaptureFixture[str]) -> None:
    """A relative path keeps its folders; any other becomes its last name."""
    assert run_command(["run", "--help"]) == 0
    captured = " ".join(capsys.readouterr().out.split())
    assert "A relative path is the target path" in captured
    assert "an absolute path, or one with `..`, is shortened to its file name" in captured
