"""A whole stack, as `sandherd up` starts it, for the tests that inject faults."""

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

TALKER = Path(__file__).with_name("talker.py").read_text()
T = TypeVar("T")


@dataclass(frozen=True)
class Stack:
    """A running stack and what tests do to it."""

    home: Path

    @asynccontextmanager
    async def herd(self) -> AsyncIterator[Herd]:
        """A client of it."""
        async with Herd.connect(Context.resolve(home=self.home, environ={}), patience=PATIENCE) as herd:
            yield herd

    async def pid(self, part: str) -> int:
        """The process of a part, once it runs."""

        async def find() -> int | None:
            parts = {found.name: found for found in (await status(self.home)).parts}
            return parts[part].pid if part in parts and parts[part].running else None

        return await eventually(find)

    async def kill(self, part: str) -> None:
        """Kill a component's process. Returns when that process has ended: a later kill is one of the next."""

        async def kill_process() -> bool | None:
            pid = await self.pid(part)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                # A process killed before may be reported as running for a moment.
                return None
            await ended(pid)
            return True

        await eventually(kill_process)

    async def whole(self, herd: Herd, sandbox: str) -> tuple[SandboxView, Audit]:
        """A sandbox that has ended and whose last word is stored, and the audit of it."""

        async def look() -> tuple[SandboxView, Audit] | None:
            view, audit = await herd.sandbox(sandbox), await herd.audit(sandbox)
            closed = bool(audit.sources) and all(source.closed for source in audit.sources)
            return (view, audit) if view.state in SANDBOX_ENDED and closed and not audit.unstored else None

        return await eventually(look)

    def allow(self, sandbox: str, number: int) -> None:
        """Have a talker continue that holds after a number of events."""
        (self.home / "sandboxes" / sandbox / "work" / f"go-{number}").touch()

    async def cleared(self, sandbox: str) -> None:
        """Wait until nothing of a sandbox is left: that comes behind its end."""

        async def look() -> bool | None:
            return None if (self.home / "sandboxes" / sandbox).exists() else True

        await eventually(look)


async def eventually(look: Callable[[], Awaitable[T | None]], seconds: float = PATIENCE) -> T:
    """What `look` finds, as soon as it finds something. Raises `TimeoutError`. An unavailable herd is asked again."""
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
            wait = min(0.5, 1.5 * wait)  # whole parts of a stack are looked at, which costs them CPU time


def worker_pid(sandbox: str) -> int | None:
    """The process of a sandbox's worker."""
    for process in psutil.process_iter(["cmdline"]):
        if "sandherd_worker.main" in (process.info["cmdline"] or []):
            try:
                if process.environ().get("SANDHERD_SANDBOX_ID") == sandbox:
                    return int(process.pid)
            except psutil.Error:
                continue
    return None


def talk(count: int, pause: float = 0.05, holds: Sequence[int] = ()) -> TaskSpec:
    """A task that says `count` numbered things, and is tried once: how an attempt ends is what is looked at.

    It holds after each of `holds` things, until it is allowed to go on (`Stack.allow`).
    """
    return TaskSpec(
        text=f"say {count} things",
        harness=CommandHarness(argv=["python3", "talker.py", str(count), str(pause), *map(str, holds)]),
        files={"talker.py": TALKER},
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
    """Supervisors and services of the stacks that these tests start are forks (`tests/preloaded_cli`)."""
