"""Programs and scripts as agents: how each gets its task, and how five lines of shell report events."""

import json
from typing import Any

import pytest

TEXT = "compute C(50, 25)\nand 'check' it: $HOME"


def command(sandbox: Any, text: str = TEXT, /, **harness: Any) -> None:
    spec = {"text": text, "harness": {"kind": "command", **harness}}
    (sandbox.state / "task.json").write_text(json.dumps(spec))


@pytest.mark.parametrize(
    ("task_as", "argv"),
    [
        ("env", ["/bin/sh", "-c", 'printf %s "$SANDHERD_TASK"']),
        ("argument", ["printf", "%s"]),
        ("stdin", ["cat"]),
        ("file", ["/bin/sh", "-c", 'cat "$SANDHERD_TASK_PATH"']),
    ],
)
async def test_program_gets_its_task(sandbox: Any, task_as: str, argv: list[str]) -> None:
    """The task is a variable, the last argument, the standard input, or a file: exactly as submitted."""
    command(sandbox, argv=argv, task_as=task_as)
    assert await sandbox.run() == 0
    assert await sandbox.output() == TEXT
    assert (await sandbox.event("completed")).data.exit_code == 0
    assert await sandbox.events("file_edited") == []


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ("四" * 42_666, ["/bin/sh", "-c", 'printf %s "$SANDHERD_TASK"; test -z "$SANDHERD_TASK_PATH"']),
        ("四" * 42_667, ["/bin/sh", "-c", 'cat "$SANDHERD_TASK_PATH"; test -z "$SANDHERD_TASK"']),
    ],
)
async def test_task_too_long_for_a_variable_is_a_file(sandbox: Any, text: str, argv: list[str]) -> None:
    """Up to 128,000 bytes the task is a variable; beyond that, the kernel would not start the program with it."""
    command(sandbox, text, argv=argv)
    assert await sandbox.run() == 0
    assert await sandbox.output() == text
    assert (await sandbox.event("completed")).data.exit_code == 0


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        ('echo "$1" "$0" | sed s:/.*/::; exit 0', "a b script\n"),
        ("#!/usr/bin/env python3\nimport sys\nprint(sys.argv[1:])\n", "['a b']\n"),
    ],
)
async def test_script_runs_with_its_arguments(sandbox: Any, script: str, shown: str) -> None:
    """The shell, or the interpreter of its first line, runs a script, which is not a file of the work tree."""
    command(sandbox, script=script, argv=["a b"])
    assert await sandbox.run() == 0
    assert await sandbox.output() == shown
    assert await sandbox.events("file_edited") == []


async def test_failing_script_fails_its_task(sandbox: Any) -> None:
    """The exit status of a script decides whether its task has failed."""
    command(sandbox, script="exit 7")
    assert await sandbox.run() == 0
    failed = (await sandbox.event("failed")).data
    assert (failed.error_type, failed.exit_code) == ("exit_status", 7)


async def test_shell_script_reports_its_own_events(sandbox: Any) -> None:
    """Tool calls, checks and usage of a five-line script become events, and the result has the usage."""
    command(
        sandbox,
        script="""
say() { printf '{"type":"agent.%s","data":%s}\\n' "$1" "$2" >&3; }
say tool_use '{"tool":"lint","tool_use_id":"t1","input":{"command":"cd src && ruff check ."}}'
say tool_result '{"tool_use_id":"t1","result":"clean","outcome":"ok","exit_code":0}'
say usage '{"input_tokens":10,"output_tokens":5,"cost_micro_usd":300}'
""",
    )
    assert await sandbox.run() == 0
    events = await sandbox.events()
    used = [event.data.tool for event in events if event.type == "agent.tool_use"]
    assert used == ["command", "lint"]
    checks = [(event.data.check, event.data.check_passed) for event in events if event.type == "agent.tool_result"]
    assert checks == [("lint", True), (None, None)]
    completed = (await sandbox.event("completed")).data
    assert (completed.input_tokens, completed.output_tokens, completed.cost_micro_usd) == (10, 5, 300)
