"""A command loads only the modules that it needs: each one costs CPU time in every call."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from sandherd.cli.app import COMMANDS, build, build_for
from sandherd.contracts import requests

HEAVY = (
    "csv", "importlib.metadata", "nats.js.api", "opentelemetry", "rich", "sandherd.bus.auth.permissions",
    "sandherd.contracts.commands",
    "sandherd.contracts.events", "sandherd.contracts.requests.access", "sandherd.contracts.streams",
    "sandherd.settings.model", "sandherd.stack", "structlog", "tarfile", "yaml", "zipfile",
)  # fmt: skip
GROUP = "sandherd.cli.commands."
WHOLE: Any = typer.main.get_command(build())
LISTS = """
import json, sys
from sandherd.lazy_imports import start_lean
start_lean()
from sandherd.cli.exit_status import run_command
run_command(sys.argv[1:])
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def loaded_by(*arguments: str, home: Path) -> set[str]:
    """The modules that a command has loaded at its end; there is no broker."""
    environ = {**os.environ, "SANDHERD_HOME": str(home), "NATS_URL": "nats://127.0.0.1:9"}
    program = [sys.executable, "-c", LISTS, *arguments]
    done = subprocess.run(program, capture_output=True, text=True, check=True, env=environ)
    return set(json.loads(done.stderr.splitlines()[-1]))


def described(command: Any) -> Any:
    """A command's help and options, and those of its subcommands."""
    options = [(one.opts, one.secondary_opts, getattr(one, "help", None), one.required) for one in command.params]
    inner = {name: described(one) for name, one in getattr(command, "commands", {}).items()}
    return command.help, command.epilog, options, inner


@pytest.mark.parametrize("group", ["tasks", "sandboxes", "approvals"])
def test_list_command_loads_only_what_it_needs(group: str, tmp_path: Path) -> None:
    """It loads neither the models of events and commands, nor a library for logs, traces, tables or settings files."""
    loaded = loaded_by(group, "list", home=tmp_path)
    assert "nats" in loaded  # it has tried to connect
    assert not loaded & set(HEAVY)
    assert not {name for name in loaded if name.startswith(("sandherd.client.repositories", "sandherd.client.events."))}
    own = {"tasks": {"tasks", "task_wait"}}.get(group, {group})
    assert {name.removeprefix(GROUP) for name in loaded if name.startswith(GROUP)} == own


def test_run_loads_no_client_of_websockets_and_no_copies_of_files(tmp_path: Path) -> None:
    """nats-py's import of aiohttp would be a fifth of its CPU time; a task without files needs nothing that copies."""
    loaded = loaded_by("run", "text", "--", "true", home=tmp_path)
    assert "nats" in loaded  # it has tried to connect
    assert not loaded & {"aiohttp", "sandherd.cli.file_copy"}


def test_run_loads_nothing_that_packs_files_or_records_traces(tmp_path: Path) -> None:
    """Only `--dir` and `--file` need archives, `--repo` branches, and a program with spans opentelemetry."""
    loaded = loaded_by("run", "text", "--", "true", home=tmp_path)
    assert "sandherd.cli.task_submission" in loaded
    assert not loaded & {
        "sandherd.cli.branch_output",
        "sandherd.cli.local_repositories",
        "sandherd.client.tasks.resume",
    }
    assert "sandherd.client.repositories.local" not in loaded
    assert not {name for name in loaded if name.startswith(("sandherd.archives", "opentelemetry", "tarfile"))}


def test_run_loads_no_client_of_jetstream_and_the_events_of_its_task_only(tmp_path: Path) -> None:
    """Their classes would be a sixth of its CPU time; types of other domains are loaded when one is received."""
    loaded = loaded_by("run", "text", "--", "true", home=tmp_path)
    assert {"nats.js.errors", "nats.js.api", "nats.js.client"} & loaded == set()
    events = {name.rpartition(".")[2] for name in loaded if name.startswith("sandherd.contracts.events.")}
    assert {"agent", "sandbox", "task", "tools"} <= events
    assert not events & {"access", "branch", "conversation", "iteration", "message", "monitor", "subscription"}


def test_status_and_events_load_no_models_that_they_do_not_read(tmp_path: Path) -> None:
    """`status` reads no events, `events` no commands and no specs of tasks: an eighth of their CPU time."""
    status, events = loaded_by("status", home=tmp_path), loaded_by("events", "task-none", home=tmp_path)
    assert "sandherd.stack.status" in status
    assert "sandherd.cli.render.history" in events
    assert not status & {"sandherd.contracts.events", "sandherd.contracts.streams", "sandherd.bus.auth.permissions"}
    assert not events & {"sandherd.contracts.commands", "sandherd.contracts.specs", "sandherd.client.events.follower"}


@pytest.mark.parametrize("name", COMMANDS)
def test_single_command_is_built_like_all(name: str) -> None:
    """Help, options and subcommands are those of the whole command line."""
    alone: Any = typer.main.get_command(build_for(["--home", "x", name]))
    assert alone.commands.keys() == {name}
    assert described(alone.commands[name]) == described(WHOLE.commands[name])


@pytest.mark.parametrize("words", [[], ["--help"], ["nonsense"], ["--home", "tasks"], ["--help", "tasks"]])
def test_line_without_a_command_builds_all(words: list[str]) -> None:
    """The help lists all commands, and an error suggests one."""
    whole: Any = typer.main.get_command(build_for(words))
    assert whole.commands.keys() == COMMANDS.keys()


def test_exported_request_names_are_those_of_their_modules() -> None:
    """Each exported name is defined in the module that it is imported from; other names raise `AttributeError`."""
    for name, module in requests._MODULE_OF.items():
        found = getattr(requests, name)
        assert found is getattr(sys.modules[f"sandherd.contracts.requests.{module}"], name)
    with pytest.raises(AttributeError):
        _ = requests.Nonsense
