"""The program that ends every sandbox when a stack is stopped."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandherd import processes
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault, SandboxPlan
from spawner.runtimes.process import ProcessRuntime
from spawner.sandbox_shutdown import end_all

Open = Callable[..., Awaitable[ProcessRuntime]]
Eventually = Callable[..., Awaitable[Any]]
PlanFor = Callable[..., SandboxPlan]

# Each waits on SIGTERM until all have received it: those ended one after the other would be killed.
TOGETHER = """
import pathlib, signal, sys, time
meeting = pathlib.Path('../../../meeting')
def leave(*_):
    meeting.joinpath(pathlib.Path.cwd().parent.name).touch()
    while len(list(meeting.iterdir())) < 3: time.sleep(0.01)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
pathlib.Path('up').touch()
while True: time.sleep(60)
"""
DEAF = (
    "import pathlib, signal; signal.signal(15, signal.SIG_IGN); pathlib.Path('up').touch()\nwhile True: signal.pause()"
)


async def start(runtime: ProcessRuntime, eventually: Eventually, *plans: SandboxPlan) -> None:
    await asyncio.gather(*(runtime.create(plan) for plan in plans))
    for plan in plans:
        await eventually((runtime.layout.directory(plan.sandbox).work / "up").exists)


def living(runtime: ProcessRuntime, *plans: SandboxPlan) -> list[processes.ProcessId]:
    found = [runtime.termination.members(runtime.layout.directory(plan.sandbox)) for plan in plans]
    assert all(found)
    return [process for pids in found for pid in pids if (process := processes.find(pid))]


async def test_all_sandboxes_are_stopped_together(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """All sandboxes together take the grace of one to stop; what remains of them is left for the next spawner."""
    runtime = await open_process(TOGETHER, "none")
    (runtime.layout.root.parent / "meeting").mkdir()
    plans = [plan_for(f"sbx-{number}") for number in range(3)]
    await start(runtime, eventually, *plans)
    found = living(runtime, *plans)
    assert await end_all(runtime, 60) == []
    assert not [process for process in found if process.alive()]
    seen = await runtime.find_all()
    assert [(each.alive, each.end and each.end.drained) for each in seen] == [(False, True)] * 3


async def test_unresponsive_sandbox_is_killed(open_process: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """A sandbox that does not respond is killed with all its processes after its grace."""
    runtime = await open_process(DEAF)
    await start(runtime, eventually, plan_for("sbx-deaf"))
    found = living(runtime, plan_for("sbx-deaf"))
    assert await end_all(runtime, 0.1) == []
    assert not [process for process in found if process.alive()]


async def test_end_all_leaves_no_control_group(open_process: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """No control group remains, not even the stack's; the next spawner knows how each sandbox ended."""
    runtime = await open_process(DEAF)
    assert runtime.groups.parents(), "this host lets us make no control groups: run the tests as root"
    await start(runtime, eventually, plan_for("sbx-one"), plan_for("sbx-two"))
    assert runtime.groups.sandboxes() == {"sbx-one", "sbx-two"}
    assert await end_all(runtime, 0.1) == []
    await runtime.close()
    assert not [parent for parent in runtime.groups.parents() if parent.exists()]
    assert [seen.end and seen.end.out_of_memory for seen in await runtime.find_all()] == [False, False]


async def test_sandbox_that_cannot_be_ended_is_reported(
    open_process: Open, plan_for: PlanFor, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox whose processes do not end is reported; the others are ended."""
    runtime = await open_process(DEAF)
    await start(runtime, eventually, plan_for("sbx-stuck"), plan_for("sbx-other"))
    stop = runtime.stop

    async def stuck(sandbox: str, grace: float) -> None:
        if sandbox == "sbx-stuck":
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, "3 processes do not end")
        await stop(sandbox, grace)

    monkeypatch.setattr(runtime, "stop", stuck)
    assert await end_all(runtime, 0.1) == ["sbx-stuck"]
    assert {seen.unit: seen.alive for seen in await runtime.find_all()} == {"sbx-stuck": True, "sbx-other": False}


async def test_orderly_stop_leaves_no_secret_on_the_disk(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """An orderly stop leaves no secret on the disk; a later recovery gets the secrets again."""
    runtime = await open_process(DEAF)
    plan = plan_for("sbx-one")
    await start(runtime, eventually, plan)
    place = runtime.layout.directory("sbx-one")
    assert place.task.read_text() == plan.spec.to_json()
    assert await end_all(runtime, 0.1) == []
    assert [entry.name for entry in place.state.iterdir() if entry in (place.task, place.joiner)] == []
    await runtime.recover(plan)
    assert place.task.read_text() == plan.spec.to_json()
    await runtime.stop("sbx-one", 0)
