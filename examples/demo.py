"""One real task, from submission to history, with the commands that a user would type.

It starts the whole stack in `build/demo`, gives an agent a task, shows what it does, and then looks at what was kept.
The exit status is 1 if anything of that did not happen.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

ROOT: Final = Path(__file__).parent.parent
HOME: Final = Path(os.environ.get("DEMO_HOME", ROOT / "build" / "demo"))
AGENT: Final = os.environ.get("DEMO_AGENT", "examples/binomial/agent.sh")
SCRIPT: Final = Path(AGENT).name if Path(AGENT).is_absolute() else AGENT
RESULT: Final = "126410606437752"
COMMAND_SECONDS: Final = 120

Json = dict[str, Any]
console: Final = Console(highlight=False)


class DemoFailedError(Exception):
    """Something that was promised did not happen."""


def main() -> int:
    """Run it all. Returns the exit status."""
    begun = time.monotonic()
    measured: list[tuple[str, str]] = []
    try:
        with _timed("stack up", measured):
            sandherd("up")
        try:
            _work(measured)
        finally:
            with _timed("stack down", measured):
                sandherd("down")
        left = subprocess.run(_command(["status"]), cwd=ROOT, check=False, capture_output=True, text=True)
        require("nothing runs here" in left.stderr, f"something of the stack still runs: {left.stdout}{left.stderr}")
    except DemoFailedError as error:
        console.print(f"\n[bold red]failed:[/] {error}", soft_wrap=True)
        return 1
    measured.append(("everything", f"{time.monotonic() - begun:.1f} s"))
    _show(measured)
    return 0


def _work(measured: list[tuple[str, str]]) -> None:
    before = {task["task"] for task in answer("tasks", "list")["tasks"]}
    with _timed("the task, as its user waited", measured):
        sandherd("run", "Compute C(50, 25)", "--file", AGENT, "--", "sh", SCRIPT)
    tasks = [task for task in answer("tasks", "list")["tasks"] if task["task"] not in before]
    require(len(tasks) == 1, f"one task was expected, {len(tasks)} were found")
    task = tasks[0]
    require(task["state"] == "completed", f"the task is {task['state']}: {task.get('error')}")
    _look_back(task["sandbox"])
    _measure(task, measured)


def _look_back(sandbox: str) -> None:
    sandherd("trajectory", sandbox)
    sandherd("events", sandbox, "--type", "agent.file_edited")
    sandherd("logs", sandbox)
    sandherd("audit", sandbox)


def _measure(task: Json, measured: list[tuple[str, str]]) -> None:
    """Check what is kept against what was done, and note what it took."""
    sandbox = task["sandbox"]
    events = lines("events", task["task"])
    edits = [event["data"] for event in events if event["type"] == "agent.file_edited"]
    require([edit["change_type"] for edit in edits] == ["created", "modified"], f"the edits seen were {edits}")
    require("-        result = result * (n - i) / (i + 1)" in edits[1]["full_diff"], "the diff is not the edit's")
    output = "".join(chunk["text"] for chunk in lines("logs", sandbox))
    require(f"C(50, 25) = {RESULT}, checked" in output, "the terminal does not show the result")
    ended = answer("sandboxes", "get", sandbox)
    require(ended["state"] == "terminated", f"the sandbox is {ended['state']}")
    audit = answer("audit", sandbox)
    stored = sum(source["stored"] for source in audit["sources"])
    require(audit["missing"] == 0 and audit["unstored"] == 0, f"something is missing: {audit}")
    require(all(source["closed"] for source in audit["sources"]), "a source has not said its last word")
    started = next(event["time"] for event in events if event["type"] == "agent.started")
    submitted = next(event["time"] for event in events if event["type"] == "task.submitted")
    measured += [
        ("submit → agent.started", f"{_between(submitted, started) * 1000:.0f} ms"),
        ("events said / stored / missing", f"{len(events)} / {stored} / {audit['missing']}"),
        ("stored twice, dead letters", f"0, {audit['dead']}"),
        ("isolation", ended["isolation"]),
    ]
    require(stored == len(events), f"{len(events)} events were said and {stored} stored")


def sandherd(*arguments: str) -> None:
    """Run a command as a user would, showing it. Raises `DemoFailedError` if it fails."""
    console.print(f"\n[bold cyan]$ sandherd {' '.join(arguments)}[/]", soft_wrap=True)
    status = subprocess.run(_command(arguments), cwd=ROOT, timeout=COMMAND_SECONDS, check=False).returncode
    require(status == 0, f"`sandherd {arguments[0]}` ended with status {status}")


def ask(*arguments: str) -> str:
    """What a command prints as JSON. Raises `DemoFailedError` if it fails."""
    done = subprocess.run(
        _command([*arguments, "-o", "json"]),
        cwd=ROOT,
        timeout=COMMAND_SECONDS,
        check=False,
        capture_output=True,
        text=True,
    )
    require(done.returncode == 0, f"`sandherd {' '.join(arguments)}`: {done.stderr.strip()}")
    return done.stdout


def answer(*arguments: str) -> Json:
    """The document that a command prints."""
    document = json.loads(ask(*arguments))
    require(isinstance(document, dict), f"`sandherd {' '.join(arguments)}` printed no object")
    return dict(document)


def lines(*arguments: str) -> list[Json]:
    """The documents that a command prints, one in each line."""
    return [json.loads(line) for line in ask(*arguments).splitlines()]


def _command(arguments: Sequence[str]) -> list[str]:
    return [str(Path(sys.executable).with_name("sandherd")), "--home", str(HOME), *arguments]


def require(condition: bool, otherwise: str) -> None:  # noqa: FBT001  # it reads as the sentence it is
    """Raise `DemoFailedError` unless it is so."""
    if not condition:
        raise DemoFailedError(otherwise)


class _timed:  # noqa: N801  # used as a statement
    """Notes how long the block took."""

    def __init__(self, what: str, measured: list[tuple[str, str]]) -> None:
        self._what, self._measured, self._begun = what, measured, time.monotonic()

    def __enter__(self) -> None:
        self._begun = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._measured.append((self._what, f"{time.monotonic() - self._begun:.1f} s"))


def _between(first: str, second: str) -> float:
    return (datetime.fromisoformat(second) - datetime.fromisoformat(first)).total_seconds()


def _show(measured: list[tuple[str, str]]) -> None:
    table = Table("measured", "", title="What it took", title_justify="left")
    for what, figure in measured:
        table.add_row(what, figure)
    console.print()
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
