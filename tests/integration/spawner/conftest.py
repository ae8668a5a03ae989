"""What the spawner's tests share: a process runtime with a worker that is a few lines of Python."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sandherd.contracts.commands import CommandHarness, Limits, TaskSpec
from sandherd.telemetry import logs
from spawner.runtimes.contract import SandboxPlan
from spawner.runtimes.process import Options, ProcessRuntime, open_runtime

Open = Callable[..., Awaitable[ProcessRuntime]]


Eventually = Callable[[Callable[[], Any]], Awaitable[Any]]
PlanFor = Callable[..., SandboxPlan]


@pytest.fixture(name="eventually")
def _eventually() -> Eventually:
    return eventually


@pytest.fixture(name="plan_for")
def _plan_for() -> PlanFor:
    return plan_for


async def eventually(condition: Callable[[], Any], seconds: float = 20) -> Any:
    """Wait until the condition returns something true, and return that."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert asyncio.get_running_loop().time() < deadline, "it never came to be"
        await asyncio.sleep(0.01)


def plan_for(sandbox: str, **limits: int) -> SandboxPlan:
    return SandboxPlan(
        project="p1",
        sandbox=sandbox,
        task="task-1",
        attempt=1,
        fence=7,
        spec=TaskSpec(text="do it", harness=CommandHarness(argv=["true"]), limits=Limits(**limits)),
        joiner="the joiner's secret",
        nats_url="nats://127.0.0.1:1",
        heartbeat_interval=30,
        stop_grace=5,
    )


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logs.configure("test", "info")


@pytest.fixture
async def open_process(tmp_path: Path) -> AsyncIterator[Open]:
    """Opens a process runtime whose worker runs the given code; everything is ended afterwards."""
    opened: list[ProcessRuntime] = []

    async def open_it(code: str, isolation: str = "bubblewrap", **options: Any) -> ProcessRuntime:
        runtime = await open_runtime(
            Options(
                root=tmp_path / "stack" / "sandboxes",
                aside=tmp_path / "stack" / "kept",
                hidden=(tmp_path / "stack",),
                isolation=isolation,  # type: ignore[arg-type]
                worker=(sys.executable, "-P", "-c", code),
                **options,
            )
        )
        opened.append(runtime)
        return runtime

    yield open_it
    for runtime in opened:
        for seen in await runtime.find_all():
            await runtime.remove(seen.sandbox)
        await runtime.close()
        for parent in runtime.groups.parents():
            if parent.exists():
                parent.rmdir()
