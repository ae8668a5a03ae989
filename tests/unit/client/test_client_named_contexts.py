"""Named contexts: added, used, shown and removed by the command, and their place among the sources of a value."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandherd.cli.exit_status import run_command
from sandherd.client.context import Context
from sandherd.client.errors import HerdError
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user without contexts, and without a stack."""
    for name in ("NATS_URL", "SANDHERD_CREDENTIALS", "SANDHERD_PROJECT", "SANDHERD_HOME", "SANDHERD_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


@pytest.fixture
def credentials(folder: Path) -> Path:
    """A client's credential for the project web."""
    broker = Broker(folder / "herd")
    broker.initialise()
    return broker.credentials(Principal.CLIENT, project="web")


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str) -> tuple[int, str, str]:
        status = run_command(words)
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return call


def added(run: Run, credentials: Path, name: str = "prod", *more: str) -> None:
    words = ("context", "add", name, "--url", f"{name}.example:4222", "--credentials", str(credentials), *more)
    assert run(*words)[0] == 0


def shown(run: Run, *options: str) -> Any:
    status, out, error = run(*options, "context", "show", "-o", "json")
    assert status == 0, error
    return json.loads(out)


def test_current_context_is_used_until_another_is_named(run: Run, credentials: Path) -> None:
    """Its address, credential and project; `local` is the stack of this machine."""
    added(run, credentials, "prod", "--use")
    added(run, credentials, "test", "--project", "other")
    found = shown(run)
    assert (found["context"], found["nats_url"], found["project"]) == ("prod", "nats://prod.example:4222", "web")
    assert found["credentials"] == str(credentials)
    assert found["sources"]["nats_url"] == "context prod"
    assert shown(run, "--context", "test")["project"] == "other"
    assert shown(run, "--context", "local")["context"] == "local"
    assert run("context", "use", "test")[0] == 0
    assert shown(run)["context"] == "test"
    assert run("context", "use", "local")[0] == 0
    assert shown(run)["nats_url"] == "nats://127.0.0.1:4222"


@pytest.mark.parametrize("variable", ["SANDHERD_CONTEXT", "SANDHERD_HOME", "NATS_URL", "SANDHERD_CREDENTIALS"])
def test_variable_that_takes_precedence_is_named(
    run: Run, credentials: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Else the next command would use another herd than the context that was just made current."""
    added(run, credentials, "prod")
    assert run("context", "use", "prod")[2] == ""
    monkeypatch.setenv(variable, "/somewhere")
    status, _, err = run("context", "use", "prod")
    assert status == 0
    assert f"{variable} is set and takes precedence" in err
    monkeypatch.setenv(variable, "prod")
    assert (run("context", "use", "prod")[2] == "") is (variable == "SANDHERD_CONTEXT")


def test_sources_override_each_other_in_the_documented_order(
    run: Run, folder: Path, credentials: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option, --context, a variable, SANDHERD_CONTEXT, the current context, the local stack."""
    stack = folder / ".local" / "share" / "sandherd"
    stack.mkdir(parents=True)
    (stack / "context.json").write_text(json.dumps({"nats_url": "nats://stack:1", "creds": {"operator": "/stack"}}))
    assert Context.resolve().nats_url == "nats://stack:1"
    for name in ("current", "variable", "option"):
        added(run, credentials, name)
    run("context", "use", "current")
    assert Context.resolve().nats_url == "nats://current.example:4222"
    monkeypatch.setenv("SANDHERD_CONTEXT", "variable")
    assert Context.resolve().nats_url == "nats://variable.example:4222"
    monkeypatch.setenv("NATS_URL", "nats://address:1")
    assert Context.resolve().nats_url == "nats://address:1"
    assert Context.resolve(context="option").nats_url == "nats://option.example:4222"
    assert Context.resolve(context="option", nats_url="nats://given:1").nats_url == "nats://given:1"
    monkeypatch.setenv("SANDHERD_CONTEXT", "local")
    monkeypatch.delenv("NATS_URL")
    assert Context.resolve().nats_url == "nats://stack:1"


def test_named_home_is_not_overridden_by_the_current_context(
    run: Run, folder: Path, credentials: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script with a stack of its own is not connected to another herd, nor with another credential."""
    home = folder / "own"
    home.mkdir()
    (home / "context.json").write_text(json.dumps({"nats_url": "nats://own:1", "creds": {"operator": "/own"}}))
    added(run, credentials, "prod", "--use")
    assert Context.resolve(home=home).nats_url == "nats://own:1"
    monkeypatch.setenv("SANDHERD_HOME", str(home))
    assert Context.resolve().credentials == Path("/own")
    assert Context.resolve(context="prod", role="operator").credentials == credentials


def test_file_is_private_and_contains_no_secret(run: Run, folder: Path, credentials: Path) -> None:
    """Only paths are stored, and only its user can read them; also after a change."""
    old = os.umask(0)
    try:
        added(run, credentials)
        added(run, credentials, "test", "--use")
    finally:
        os.umask(old)
    file = folder / "config" / "sandherd" / "contexts.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert "BEGIN" not in file.read_text()
    assert "SU" not in file.read_text()
    run("context", "remove", "test")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_contexts_are_listed_replaced_and_removed(run: Run, credentials: Path) -> None:
    """A name that is in use is replaced only on request; the current one that is removed is current no more."""
    added(run, credentials, "prod", "--use")
    words = ("context", "add", "prod", "--url", "new:1", "--credentials", str(credentials))
    status, _, error = run(*words)
    assert (status, "--replace" in error) == (1, True)
    assert run(*words, "--replace")[0] == 0
    found = json.loads(run("context", "list", "-o", "json")[1])
    assert [(one["context"], one["current"], one["nats_url"]) for one in found["contexts"]] == [
        ("prod", True, "nats://new:1")
    ]
    assert run("context", "list", "-o", "name")[1].split() == ["prod"]
    assert run("context", "remove", "prod")[0] == 0
    assert json.loads(run("context", "list", "-o", "json")[1]) == {"contexts": [], "current": None}


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["--context", "absent", "context", "show"], "sandherd context list"),
        (["context", "use", "absent"], "sandherd context list"),
        (["context", "remove", "absent"], "sandherd context list"),
        (["context", "add", "prod"], "--url"),
        (["context", "add", "prod", "--url", "h:1"], "--credentials"),
        (["context", "add", "local", "--url", "h:1", "--credentials", "CREDS"], "another name"),
        (["context", "add", "prod", "--url", "nats://u:p@h:1", "--credentials", "CREDS"], ".creds file"),
        (["context", "add", "prod", "--url", "http://h", "--credentials", "CREDS"], "nats://"),
        (["context", "add", "prod", "--url", "h:1", "--credentials", "absent.creds"], ".creds"),
        (["context", "add", "prod", "--url", "h:1", "--credentials", "CREDS", "--ca", "absent.pem"], "PEM"),
    ],
)
def test_errors_name_the_fix(run: Run, credentials: Path, folder: Path, words: list[str], fix: str) -> None:
    """One line, and nothing is stored."""
    status, out, error = run(*(word.replace("CREDS", str(credentials)) for word in words))
    assert (status in {1, 2}, out, error.count("\n")) == (True, "", 1)
    assert fix in error
    assert not (folder / "config").exists()


@pytest.mark.parametrize("text", ["{", '{"contexts": {"A b": {}}}', "[]"])
def test_broken_file_is_named_with_the_fix(run: Run, folder: Path, text: str) -> None:
    """It is not overwritten, and the stack of a named home can still be used."""
    file = folder / "config" / "sandherd" / "contexts.json"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    status, _, error = run("context", "list")
    assert (status, str(file) in error, error.count("\n")) == (1, True, 1)
    with pytest.raises(HerdError, match=r"contexts\.json"):
        Context.resolve()
    assert Context.resolve(home=folder).name is None
    assert file.read_text() == text
