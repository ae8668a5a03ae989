"""The assignment: what a worker is started with, and what is wrong with it."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from sandherd.contracts.commands import TaskSpec
from sandherd_worker.agents import environment, put_files, secrets
from sandherd_worker.assignment import AssignmentError
from sandherd_worker.exits import ExitCode


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SANDHERD_SANDBOX_ID", "*"),
        ("SANDHERD_SANDBOX_ID", ">"),
        ("SANDHERD_SANDBOX_ID", "a.b"),
        ("SANDHERD_PROJECT", ""),
        ("SANDHERD_FENCE", "x"),
        ("HEARTBEAT_INTERVAL", "-1"),
        ("HEARTBEAT_INTERVAL", "nan"),
        ("NATS_URL", ""),
        ("SANDHERD_PORTS", "12000,80"),
        ("SANDHERD_PORTS", "12000;12001"),
        ("SANDHERD_PORTS", "65536"),
    ],
)
def test_a_variable_that_cant_be_used_is_named(tmp_path: Path, assignment: Any, name: str, value: str) -> None:
    """Hostile and senseless values are refused with the variable's name."""
    with pytest.raises(AssignmentError, match=name):
        assignment(tmp_path, **{name: value})


async def started(arguments: list[str], variables: dict[str, str]) -> tuple[int | None, str]:
    """The exit status of a worker, and what it has written to standard error."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sandherd_worker.main", *arguments, env=variables, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    return process.returncode, errors.decode()


async def test_a_start_that_makes_no_sense_ends_with_its_own_status(tmp_path: Path) -> None:
    """Unknown options, missing variables and a broken task file: status 2 and one line that says what."""
    (tmp_path / "task.json").write_text('{"text": "x", "harness": {"kind": "unknown"}}')
    variables = {
        "SANDHERD_PROJECT": "p1",
        "SANDHERD_SANDBOX_ID": "sbx-1",
        "SANDHERD_TASK_ID": "task-1",
        "NATS_URL": "nats://127.0.0.1:1",
        "SANDHERD_TASK_FILE": str(tmp_path / "task.json"),
        "SANDHERD_STATE_DIR": str(tmp_path),
        "SANDHERD_WORK_DIR": str(tmp_path),
    }
    results = await asyncio.gather(started(["--nonsense"], {}), started([], {}), started([], variables))
    assert [status for status, _ in results] == [ExitCode.USAGE] * 3
    usage, missing, broken = (errors for _, errors in results)
    assert "usage:" in usage
    assert "SANDHERD_PROJECT" in missing
    assert "harness" in broken
    assert all(len(errors.splitlines()) == 1 for errors in (usage, missing, broken))


def test_the_agents_environment_is_its_own(tmp_path: Path, assignment: Any) -> None:
    """The task's variables and who it is; nothing of the worker's credentials, and nobody can pretend to be another."""
    who = assignment(tmp_path, SANDHERD_CREDENTIALS="/x/joiner.creds", PATH="/bin")
    spec = TaskSpec.model_validate(
        {
            "text": "do it",
            "harness": {"kind": "command", "argv": ["true"]},
            "env": {"A": "1", "TOKEN": "hush-hush", "SANDHERD_SANDBOX_ID": "sbx-other"},
            "secret_env": ["TOKEN"],
        }
    )
    found = environment(spec, who)
    assert (found["A"], found["TOKEN"], found["PATH"], found["SANDHERD_TASK"]) == ("1", "hush-hush", "/bin", "do it")
    assert found["SANDHERD_SANDBOX_ID"] == "sbx-1"
    assert "joiner.creds" not in json.dumps(found)
    assert secrets(spec) == ["hush-hush"]


def test_an_agent_goes_on_in_the_trace_of_its_task(tmp_path: Path, assignment: Any) -> None:
    """It finds its span in `TRACEPARENT`, as programs look for it; a task that brings one of its own keeps that."""
    ours, own = f"00-{'a' * 32}-{'b' * 16}-01", f"00-{'c' * 32}-{'d' * 16}-01"
    said = {"text": "x", "harness": {"kind": "command", "argv": ["true"]}}
    who = assignment(tmp_path, TRACEPARENT=ours)
    assert environment(TaskSpec.model_validate(said), who)["TRACEPARENT"] == ours
    assert environment(TaskSpec.model_validate(said | {"env": {"TRACEPARENT": own}}), who)["TRACEPARENT"] == own
    assert "TRACEPARENT" not in environment(TaskSpec.model_validate(said), assignment(tmp_path))


def test_the_tasks_files_are_put_into_the_work_tree(tmp_path: Path) -> None:
    """With the directories that they need."""
    spec = TaskSpec.model_validate(
        {"text": "x", "harness": {"kind": "command", "argv": ["true"]}, "files": {"a/b/c.txt": "hello\n"}}
    )
    put_files(spec, tmp_path)
    assert (tmp_path / "a" / "b" / "c.txt").read_text() == "hello\n"
