"""The address of the herd: parameter, environment, context file, default."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandherd.cli.exit_status import run_command
from sandherd.client.context import Context, holder
from sandherd.client.errors import HerdError


def a_home(tmp_path: Path, **more: object) -> Path:
    facts = {
        "nats_url": "nats://stack:1",
        "creds": {"client-default": str(tmp_path / "client.creds"), "operator": str(tmp_path / "operator.creds")},
        "services": {"spawner": {"http": "http://127.0.0.1:9"}},
    }
    (tmp_path / "context.json").write_text(json.dumps(facts | more))
    return tmp_path


def test_missing_credentials_file_is_named_with_where_to_check(tmp_path: Path) -> None:
    """The error is neither an errno nor that the file has invalid contents."""
    with pytest.raises(HerdError) as raised:
        holder(tmp_path / "nosuch")
    assert raised.value.line.startswith(f"{tmp_path / 'nosuch'}: no such file; check --credentials")


def test_missing_backup_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder, rather than a file in it that the user does not know."""
    assert run_command(["--home", str(tmp_path), "restore", str(tmp_path / "nosuch")]) == 1
    assert f"{tmp_path / 'nosuch'}: no such file or folder; name the folder" in capsys.readouterr().err


def test_client_library_writes_nothing_to_standard_error(tmp_path: Path) -> None:
    """A program gets an error, and decides itself what to print."""
    program = """
import asyncio
from sandherd.client import Context, Herd, HerdError

async def main():
    try:
        async with Herd.connect(Context.resolve(nats_url="nats://127.0.0.1:9"), patience=0.5):
            pass
    except HerdError as error:
        print(error)

asyncio.run(main())
"""
    environ = {**os.environ, "SANDHERD_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environ)
    assert (done.stdout, done.stderr) == ("no broker at nats://127.0.0.1:9\n", "")


def test_strongest_source_wins(tmp_path: Path) -> None:
    """A parameter overrides the environment, which overrides the stack's context."""
    home = a_home(tmp_path)
    environ = {"SANDHERD_HOME": str(home)}
    assert Context.resolve(environ=environ).nats_url == "nats://stack:1"
    environ |= {"NATS_URL": "nats://env:2"}
    assert Context.resolve(environ=environ).nats_url == "nats://env:2"
    found = Context.resolve(nats_url="nats://given:3", environ=environ)
    assert found.nats_url == "nats://given:3"
    assert found.sources["nats_url"] == "parameter"
    assert found.sources["credentials"] == "context"


def test_without_a_stack_there_are_defaults(tmp_path: Path) -> None:
    """No context file is no error: the default broker, without a credential."""
    found = Context.resolve(home=tmp_path, environ={})
    assert (found.nats_url, found.credentials, found.project) == ("nats://127.0.0.1:4222", None, "default")


def test_role_and_project_choose_the_credential(tmp_path: Path) -> None:
    """A user's is the project's client credential; without it or its permission, the operator's."""
    home = a_home(tmp_path)
    assert Context.resolve(home=home, environ={}).credentials == tmp_path / "client.creds"
    assert Context.resolve(home=home, environ={}, role="operator").credentials == tmp_path / "operator.creds"
    assert Context.resolve(home=home, environ={}, project="other").credentials == tmp_path / "operator.creds"
    environ = {"SANDHERD_CREDENTIALS": "/own.creds"}
    assert Context.resolve(home=home, environ=environ, role="operator").credentials == Path("/own.creds")


@pytest.mark.parametrize("text", ["{", "\x00", "[1"])
def test_broken_context_names_the_remedy(tmp_path: Path, text: str) -> None:
    """A context file that can't be read is reported, with the remedy."""
    (tmp_path / "context.json").write_text(text)
    with pytest.raises(HerdError) as raised:
        Context.resolve(home=tmp_path, environ={})
    assert "sandherd up" in raised.value.line


@pytest.mark.parametrize("project", ["*", ">", "a.b", "", "A", "a" * 64])
def test_hostile_project_is_refused(tmp_path: Path, project: str) -> None:
    """A project name that leads to another tree is refused."""
    with pytest.raises(HerdError) as raised:
        Context.resolve(home=tmp_path, project=project, environ={})
    assert raised.value.problem.field == "project"


def test_invalid_credential_file_names_the_remedy(tmp_path: Path) -> None:
    """A file that is no credential is refused before any request."""
    path = tmp_path / "x.creds"
    for text in ("", "eyJhbGciOiJub25lIn0.e30.x", "-----BEGIN NATS USER JWT-----\neyJ\n"):
        path.write_text(text)
        with pytest.raises(HerdError, match="not a credentials file") as raised:
            holder(path)
        assert "name a .creds file with --credentials, SANDHERD_CREDENTIALS or a context" in raised.value.line
    with pytest.raises(HerdError):
        holder(tmp_path / "absent.creds")


def shown(*words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    """Value and source of each setting, as the command says."""
    assert run_command([*words, "config", "show", "-o", "json"]) == 0
    return {one["setting"]: (one["value"], one["source"]) for one in json.loads(capsys.readouterr().out)}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment has no settings."""
    for name in [name for name in os.environ if name.startswith(("SANDHERD_", "NATS_"))]:
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("alone")
def test_settings_file_of_the_stack_applies_unless_another_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Values are shown with their source; the stack's own addresses override the file."""
    (tmp_path / "stack.yaml").write_text("max_attempts: 2\nproject: own\nnats_url: nats://other:9\nhome: /other\n")
    (tmp_path / "mine.yaml").write_text("max_attempts: 5\n")
    home = a_home(tmp_path, config=str(tmp_path / "stack.yaml"))
    found = shown("--home", str(home), capsys=capsys)
    assert found["config"] == (str(tmp_path / "stack.yaml"), "context")
    assert (found["max_attempts"], found["project"]) == (("2", "yaml"), ("own", "yaml"))
    assert found["nats_url"] == ("nats://stack:1", "context")
    assert found["home"] == (str(home), "parameter")
    assert Context.resolve(home=home, environ={}).project == "own"
    given = shown("--home", str(home), "--config", str(tmp_path / "mine.yaml"), capsys=capsys)
    assert (given["config"], given["max_attempts"]) == ((str(tmp_path / "mine.yaml"), "parameter"), ("5", "yaml"))
    monkeypatch.setenv("SANDHERD_CONFIG", str(tmp_path / "mine.yaml"))
    named = shown("--home", str(home), capsys=capsys)
    assert (named["config"][1], named["project"]) == ("environment", ("default", "default"))


@pytest.mark.usefixtures("alone")
def test_missing_settings_file_fails_only_commands_that_read_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stack can still be stopped; the settings are not guessed."""
    home = a_home(tmp_path, config=str(tmp_path / "gone.yaml"))
    assert Context.resolve(home=home, environ={}).nats_url == "nats://stack:1"
    assert run_command(["--home", str(home), "config", "show"]) == 2
    assert "gone.yaml" in (error := capsys.readouterr().err)
    assert "--config" in error


@pytest.mark.usefixtures("alone")
def test_missing_settings_file_is_shown_as_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The line is there nevertheless."""
    assert shown("--home", str(a_home(tmp_path)), capsys=capsys)["config"] == ("", "default")
