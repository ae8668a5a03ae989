"""The assignment: the variables and files that a worker is started with, and their errors."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from sandherd.contracts.commands import TaskSpec
from sandherd_worker.access.archive import write_files
from sandherd_worker.assignment import AssignmentError
from sandherd_worker.harness_factory import environment, secrets
from sandherd_worker.worker_exit import ExitCode


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
def test_invalid_variable_is_reported(tmp_path: Path, assignment: Any, name: str, value: str) -> None:
    """The error for an invalid value names the variable."""
    with pytest.raises(AssignmentError, match=name):
        assignment(tmp_path, **{name: value})


async def started(arguments: list[str], variables: dict[str, str]) -> tuple[int | None, str]:
    """The exit status of a worker, and what it has written to standard error."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sandherd_worker.main", *arguments, env=variables, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    return process.returncode, errors.decode()


async def test_invalid_start_exits_with_usage_status(tmp_path: Path) -> None:
    """Unknown options, missing variables and a broken task file: status 2 and one line with the reason."""
    (tmp_path / "task.json").write_text('{"text": "x", "harness": {"kind": "claude", "unknown": 1}}')
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


def test_agent_environment_excludes_worker_credentials(tmp_path: Path, assignment: Any) -> None:
    """The agent gets the task's variables and its identity, which the task cannot override."""
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


def test_agent_continues_the_trace_of_its_task(tmp_path: Path, assignment: Any) -> None:
    """The agent's `TRACEPARENT` is its span; a task's own variable is retained."""
    ours, own = f"00-{'a' * 32}-{'b' * 16}-01", f"00-{'c' * 32}-{'d' * 16}-01"
    spec_fields = {"text": "x", "harness": {"kind": "command", "argv": ["true"]}}
    who = assignment(tmp_path, TRACEPARENT=ours)
    assert environment(TaskSpec.model_validate(spec_fields), who)["TRACEPARENT"] == ours
    assert environment(TaskSpec.model_validate(spec_fields | {"env": {"TRACEPARENT": own}}), who)["TRACEPARENT"] == own
    assert "TRACEPARENT" not in environment(TaskSpec.model_validate(spec_fields), assignment(tmp_path))


def test_files_of_the_task_are_put_into_the_work_tree(tmp_path: Path) -> None:
    """The files are written, and missing directories are created."""
    spec = TaskSpec.model_validate(
        {"text": "x", "harness": {"kind": "command", "argv": ["true"]}, "files": {"a/b/c.txt": "hello\n"}}
    )
    write_files(spec, tmp_path)
    assert (tmp_path / "a" / "b" / "c.txt").read_text() == "hello\n"
