"""A whole stack, as `sandherd up` starts it, for tests that inject faults."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from sandherd.client import Context, Herd, HerdError
from sandherd.contracts.commands import CommandHarness, RetryPolicy, TaskSpec
from sandherd.contracts.requests import Audit, SandboxView
from sandherd.contracts.states import SANDBOX_ENDED
from sandherd.process_signals import ended
from sandherd.stack.control import down, status, up
from tests.patience import PATIENCE

COUNTING_AGENT = Path(__file__).with_name("counting_agent.py").read_text()
T = TypeVar("T")


@dataclass(frozen=True)
class Stack:
    """A running stack, and the operations of tests on it."""

    home: Path

    @asynccontextmanager
    async def herd(self) -> AsyncIterator[Herd]:
        """A client of the stack."""
        async with Herd.connect(Context.resolve(home=self.home, environ={}), patience=PATIENCE) as herd:
            yield herd

    async def pid(self, part: str) -> int:
        """Wait until a part runs; returns its process id."""

        async def find() -> int | None:
            parts = {found.name: found for found in (await status(self.home)).parts}
            return parts[part].pid if part in parts and parts[part].running else None

        return await eventually(find)

    async def kill(self, part: str) -> None:
        """Kill a component's process. Returns when that process has ended, so that a later kill hits the next one."""

        async def kill_process() -> bool | None:
            pid = await self.pid(part)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                # A process that was killed before may be reported as running for a moment.
                return None
            await ended(pid)
            return True

        await eventually(kill_process)

    async def whole(self, herd: Herd, sandbox: str) -> tuple[SandboxView, Audit]:
        """Wait until a sandbox has ended and its last event is stored; returns its audit."""

        async def look() -> tuple[SandboxView, Audit] | None:
            view, audit = await herd.sandbox(sandbox), await herd.audit(sandbox)
            closed = bool(audit.sources) and all(source.closed for source in audit.sources)
            return (view, audit) if view.state in SANDBOX_ENDED and closed and not audit.unstored else None

        return await eventually(look)

    def allow(self, sandbox: str, number: int) -> None:
        """Let a counting agent continue that waits after a number of events."""
        (self.home / "sandboxes" / sandbox / "work" / f"go-{number}").touch()

    async def cleared(self, sandbox: str) -> None:
        """Wait until nothing of a sandbox is left, which happens after its end."""

        async def look() -> bool | None:
            return None if (self.home / "sandboxes" / sandbox).exists() else True

        await eventually(look)


async def eventually(look: Callable[[], Awaitable[T | None]], seconds: float = PATIENCE) -> T:
    """Call `look` until it finds something, and return that. An unavailable herd is retried. Raises `TimeoutError`."""
    wait = 0.1
    async with asyncio.timeout(seconds):
        while True:
            try:
                found = await look()
            except HerdError:
                found = None
            if found is not None:
                return found
            await asyncio.sleep(wait)
            wait = min(0.5, 1.5 * wait)  # a check may concern whole parts of a stack, which costs them CPU time


def worker_pid(sandbox: str) -> int | None:
    """The process id of a sandbox's worker."""
    for process in psutil.process_iter(["cmdline"]):
        if "sandherd_worker.main" in (process.info["cmdline"] or []):
            try:
                if process.environ().get("SANDHERD_SANDBOX_ID") == sandbox:
                    return int(process.pid)
            except psutil.Error:
                continue
    return None


def counting_task(count: int, pause: float = 0.05, holds: Sequence[int] = ()) -> TaskSpec:
    """Submit a task whose agent publishes `count` messages. It has one attempt, as its end is what is tested.

    The agent waits after each of `holds` messages until it may continue (`Stack.allow`).
    """
    return TaskSpec(
        text=f"publish {count} messages",
        harness=CommandHarness(argv=["python3", "counting_agent.py", str(count), str(pause), *map(str, holds)]),
        files={"counting_agent.py": COUNTING_AGENT},
        retry=RetryPolicy(max_attempts=1),
    )


@pytest.fixture(scope="package")
def stack() -> Iterator[Stack]:
    """One stack for all tests of a process that kill parts of it; nothing of it is left afterwards."""
    home = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        asyncio.run(up(home))
        yield Stack(home)
    finally:
        asyncio.run(down(home))
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _forked_services(sandherd_program: Path) -> None:
    """Make supervisors and services of these tests' stacks forks (`tests/preloaded_cli`)."""
