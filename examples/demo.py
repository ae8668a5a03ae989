"""One real task, from submission to a branch and the history, with the commands that a user would type.

It starts the whole stack in `build/demo` and makes a git repository with a failing test. An agent fixes it on a branch
of its own; the demo shows what the agent does, gets the branch, and checks what was stored. The exit status is 1 if
anything of that did not happen.
"""

import asyncio
import os
import resource
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sandherd import stack
from sandherd.client.context import Context
from sandherd.client.errors import HerdError
from sandherd.client.events.decoder import from_history as as_event
from sandherd.client.events.sequencer import Event
from sandherd.client.herd import Herd
from sandherd.contracts.requests import Audit, BranchView, SandboxView, TaskView

ROOT: Final = Path(__file__).parent.parent
HOME: Final = Path(os.environ.get("DEMO_HOME", ROOT / "build" / "demo"))
AGENT: Final = os.environ.get("DEMO_AGENT", "examples/binomial/agent.sh")
TEXT: Final = "Fix the failing test"
BRANCH_SOURCE: Final = "/sandherd/spawner/br-"
RESULT: Final = "126410606437752"
COMMAND_SECONDS: Final = 120
SETTLE_SECONDS: Final = 30

Row = tuple[str, str, str]
console: Final = Console(highlight=False)


class DemoFailedError(Exception):
    """Something that was promised did not happen."""


@dataclass(frozen=True)
class Kept:
    """What the herd knows of the task, once it has ended."""

    task: TaskView
    sandbox: SandboxView
    events: list[Event]
    output: str
    audit: Audit
    branch: BranchView


def main() -> int:
    """Run it all. Returns the exit status."""
    begun, measured = time.monotonic(), list[Row]()
    try:
        with _timed("stack up: broker, database, five services", measured):
            sandherd("up")
        try:
            page = _work(measured)
        finally:
            with _timed("stack down", measured):
                sandherd("down")
        left = [part.name for part in asyncio.run(stack.status(HOME)).parts if part.running]
        require(not left, f"something of the stack still runs: {left}")
    except (DemoFailedError, HerdError) as error:
        console.print(f"\n[bold red]failed:[/] {error}", soft_wrap=True)
        return 1
    measured.append(("everything", f"{time.monotonic() - begun:.1f} s", f"{_processor_seconds():.1f} s"))
    _show(measured)
    again = " ".join(shlex.quote(word) for word in _command(()))
    console.print(f"\nThe page of the session is {page} while the stack runs:", soft_wrap=True)
    console.print(escape(f"{again} up && {again} open {page.rpartition('/')[2]}"), soft_wrap=True)
    return 0


def _work(measured: list[Row]) -> str:
    """Have the task done, and check it. Returns the address of the page of its session."""
    submitted, repository = time.time(), _repository()
    with _timed("the task, as its user waited", measured):
        script = (ROOT / AGENT).read_text()
        sandherd("run", TEXT, "--repo", repository, "--", "sh", "-c", script, hidden=script)
    with _timed("the same, asked for by this program", measured):
        kept = asyncio.run(_ask(submitted))
    with _timed("looking back, five commands", measured):
        _look_back(kept, repository)
    _check(kept)
    _check_repository(repository, kept.branch.branch)
    measured += _explained(kept)
    gateway = (stack.Home(HOME).api_url or "").removesuffix("/api/v1")
    return f"{gateway}/sandboxes/{kept.sandbox.sandbox}"


def _repository() -> str:
    """A new repository with a failing test."""
    folder = HOME.parent / f"{HOME.name}-repository" / "binomial"
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["sh", str(ROOT / "examples/binomial/make_repository.sh"), str(folder)], check=True)
    return str(folder)


def _look_back(kept: Kept, repository: str) -> None:
    sandbox = kept.task.sandbox or ""
    sandherd("trajectory", sandbox)
    sandherd("logs", sandbox)
    sandherd("audit", sandbox)
    sandherd("diff", kept.task.task)
    sandherd("branches", "fetch", kept.branch.branch, "--into", repository)


async def _ask(since: float) -> Kept:
    """Ask for everything over one connection, as a program does."""
    async with Herd.connect(Context.resolve(home=HOME)) as herd:
        tasks = [task for task in (await herd.tasks()).items if task.submitted_at.timestamp() >= since]
        require(len(tasks) == 1, f"one task was expected, {len(tasks)} were found")
        task = tasks[0]
        require(task.state == "completed" and task.sandbox is not None, f"the task is {task.state}: {task.error}")
        name = task.sandbox or ""
        await _settled(herd, name)
        return Kept(
            task=task,
            sandbox=await herd.sandbox(name),
            events=[as_event(event) async for event in herd.events(task=task.task)],
            output="".join([chunk.text async for chunk in herd.output(name)]),
            audit=await herd.audit(name),
            branch=await herd.branch(task.task),
        )


async def _settled(herd: Herd, sandbox: str) -> None:
    """Wait until the sandbox is gone and its last word is stored: the task ends a moment before them."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline:
        view, audit = await herd.sandbox(sandbox), await herd.audit(sandbox)
        if view.state == "terminated" and not audit.unstored and _closed(audit):
            return
        await asyncio.sleep(0.05)


def _closed(audit: Audit) -> bool:
    """Whether every source has published its last event; that of a branch follows when the branch is deleted."""
    return all(source.closed or source.source.startswith(BRANCH_SOURCE) for source in audit.sources)


def _check(kept: Kept) -> None:
    """Check what is kept against what was done."""
    edits = [event.data for event in kept.events if event.type == "agent.file_edited"]
    require([edit.change_type for edit in edits] == ["modified"], f"the edits seen were {edits}")
    require("-        result = result * (n - i) / (i + 1)" in (edits[0].full_diff or ""), "the diff is not the edit's")
    require(f"C(50, 25) = {RESULT}, checked" in kept.output, "the terminal does not show the result")
    require(kept.sandbox.state == "terminated", f"the sandbox is {kept.sandbox.state}")
    audit = kept.audit
    require(audit.missing == 0 and audit.unstored == 0, f"something is missing: {audit}")
    require(_closed(audit), "a source has not published its last event")
    stored, sources = sum(one.stored for one in audit.sources), {one.source for one in audit.sources}
    # What services publish about many sandboxes, as the monitor does, is no part of the audit of one.
    published = sum(event.source in sources for event in kept.events)
    require(stored == published, f"{published} events were published and {stored} stored")


def _check_repository(repository: str, branch: str) -> None:
    """Check the branch that was fetched: its test passes, and the base's does not."""

    def passes(name: str) -> bool:
        subprocess.run(["git", "-C", repository, "checkout", "--quiet", name], check=True)
        test = [sys.executable, "-B", "test_binomial.py"]
        return subprocess.run(test, cwd=repository, capture_output=True, check=False).returncode == 0

    require(passes(branch), "the test fails on the branch")
    require(not passes("main"), "the test passes without the branch")


def _explained(kept: Kept) -> list[Row]:
    """Where the time of the task went, by its own events."""
    at: dict[str, datetime] = {}
    for event in kept.events:
        at.setdefault(event.type, event.time)

    def between(first: str, second: str) -> str:
        return f"{(at[second] - at[first]).total_seconds() * 1000:.0f} ms"

    audit = kept.audit
    return [
        ("submit → agent.started", between("task.submitted", "agent.started"), ""),
        ("agent.started → agent.completed", between("agent.started", "agent.completed"), ""),
        ("agent.completed → sandbox gone", between("agent.completed", "sandbox.terminated"), ""),
        ("events / missing / dead letters", f"{len(kept.events)} / {audit.missing} / {audit.dead}", ""),
        ("isolation", kept.sandbox.isolation or "none", ""),
    ]


def sandherd(*arguments: str, hidden: str | None = None) -> None:
    """Run a command as a user would, showing it. Raises `DemoFailedError` if it fails.

    In place of the text `hidden`, the command that reads it is shown.
    """
    shown = " ".join(f'"$(cat {AGENT})"' if word == hidden else shlex.quote(word) for word in arguments)
    console.print(f"\n[bold cyan]$ sandherd {escape(shown)}[/]", soft_wrap=True)
    status = subprocess.run(_command(arguments), cwd=ROOT, timeout=COMMAND_SECONDS, check=False).returncode
    require(status == 0, f"`sandherd {arguments[0]}` ended with status {status}")


def _command(arguments: Sequence[str]) -> list[str]:
    return [str(Path(sys.executable).with_name("sandherd")), "--home", str(HOME), *arguments]


def require(condition: bool, otherwise: str) -> None:  # noqa: FBT001  # it reads as the sentence it is
    """Raise `DemoFailedError` unless it is so."""
    if not condition:
        raise DemoFailedError(otherwise)


class _timed:  # noqa: N801  # used as a statement
    """Notes how long the block took, and what CPU time its commands and this program used meanwhile."""

    def __init__(self, what: str, measured: list[Row]) -> None:
        self._what, self._measured = what, measured
        self._begun, self._used = time.monotonic(), 0.0

    def __enter__(self) -> None:
        self._begun, self._used = time.monotonic(), _processor_seconds()

    def __exit__(self, *_: object) -> None:
        took, used = time.monotonic() - self._begun, _processor_seconds() - self._used
        self._measured.append((self._what, f"{took:.1f} s", f"{used:.1f} s"))


def _processor_seconds() -> float:
    """User CPU time of this program and of the commands it ran; the stack's own processes are not among them."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(resource.getrusage(each).ru_utime for each in who)


def _show(measured: list[Row]) -> None:
    table = Table("measured", "took", "CPU of the commands", title="Where the time went", title_justify="left")
    for row in measured:
        table.add_row(*row)
    console.print()
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
