"""Stopping a stack stops its sandboxes; a crash of it does not."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from sandherd.client import Herd
from sandherd.contracts.states import SandboxState, TaskState
from sandherd.stack.control import down, status, up
from tests.faults.conftest import Stack, counting_task, eventually, worker_pid

pytestmark = [pytest.mark.timeout(900)]

LONG = 1_000_000
PAUSE = 1.0
"""Seconds after every twenty messages: the agent must publish, but not use all CPU time of the services."""


def processes_of(sandbox: str) -> list[int]:
    """Every process of a sandbox: all have its name in their environment, which an agent's children inherit."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("SANDHERD_SANDBOX_ID") == sandbox:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.fixture
async def own_stack(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stack]:
    """A stack that a test may stop and start."""
    # Without a spawner, a worker that has not joined yet can publish nothing, and uses all of its grace;
    # on a busy machine other workers need some of it.
    monkeypatch.setenv("SANDHERD_STOP_GRACE", "15")
    home = Path(tempfile.mkdtemp(prefix="stopping-"))
    try:
        await up(home)
        yield Stack(home)
    finally:
        await down(home)
        shutil.rmtree(home, ignore_errors=True)


async def begin(herd: Herd) -> tuple[str, str]:
    """Start an endless task; returns it and its sandbox, once its agent works."""
    task = await herd.submit(counting_task(LONG, PAUSE))

    async def running() -> str | None:
        view = await herd.task(task)
        return view.sandbox if view.state is TaskState.RUNNING else None

    return task, await eventually(running)


async def is_back(stack: Stack, part: str, before: int) -> None:
    async def look() -> bool | None:
        now = await status(stack.home)
        return (now.ready and {found.name: found.pid for found in now.parts}.get(part, before) != before) or None

    await eventually(look)


async def kill_supervisor(stack: Stack) -> None:
    """Kill the supervisor; all processes that it has started live on."""
    supervisor = (await status(stack.home)).supervisor_pid
    assert supervisor is not None
    os.kill(supervisor, signal.SIGKILL)

    async def look() -> bool | None:
        return (await status(stack.home)).supervisor_pid is None or None

    await eventually(look)


async def check_stopped(stack: Stack, task: str, sandbox: str, *, begun: bool = True) -> None:
    """Check that the next `up` reports the sandbox as stopped, with nothing missing.

    An agent that had not `begun` may have published nothing: then its worker is found to be lost.
    """
    async with stack.herd() as herd:
        view, audit = await stack.whole(herd, sandbox)
        ended = await herd.task(task)
        types = [event.envelope["type"] async for event in herd.events(sandbox=sandbox)]
    assert ended.state is TaskState.FAILED
    assert ended.error_type == "stopped" or (not begun and ended.error_type == "worker_lost")
    assert view.state is SandboxState.TERMINATED
    assert audit.missing == 0
    assert audit.dead == 0
    last_words = (types.count("agent.failed"), types.count("agent.shutdown"))
    assert last_words == (1, 1) or (not begun and last_words == (0, 0))
    await stack.cleared(sandbox)


async def test_down_stops_agents_and_crashes_do_not(own_stack: Stack) -> None:
    """An agent survives a killed spawner or supervisor; `down` stops it, which the next `up` reports.

    `down` does so even if its supervisor was killed, also for a sandbox whose worker has only just been started.
    """
    await check_agent_outlives_crashes(own_stack)
    await check_sandboxes_of_a_killed_supervisor(own_stack)


async def check_agent_outlives_crashes(stack: Stack) -> None:
    """Check that the agent runs until `down`, and that the stack runs again afterwards."""
    async with stack.herd() as herd:
        task, sandbox = await begin(herd)
        worker = worker_pid(sandbox)
        for number in (signal.SIGKILL, signal.SIGTERM):
            spawner = await stack.pid("spawner")
            os.kill(spawner, number)
            await is_back(stack, "spawner", spawner)
    await kill_supervisor(stack)
    await up(stack.home)
    assert worker is not None
    assert worker_pid(sandbox) == worker
    async with stack.herd() as herd:
        assert (await herd.task(task)).state is TaskState.RUNNING
    assert processes_of(sandbox)
    ended = await down(stack.home)
    assert not ended.sandboxes_left
    assert processes_of(sandbox) == []
    await up(stack.home)
    await check_stopped(stack, task, sandbox)


async def check_sandboxes_of_a_killed_supervisor(stack: Stack) -> None:
    """Check that a sandbox whose worker has only just been started is stopped, too."""
    async with stack.herd() as herd:
        task, sandbox = await begin(herd)
        young = await herd.submit(counting_task(LONG, PAUSE))

        async def made() -> str | None:
            return (await herd.task(young)).sandbox

        fresh = await eventually(made)
    await eventually(lambda: _answer(bool(processes_of(fresh)) or None))
    await kill_supervisor(stack)
    assert not (await down(stack.home)).sandboxes_left
    assert processes_of(sandbox) + processes_of(fresh) == []
    await up(stack.home)
    await asyncio.gather(check_stopped(stack, task, sandbox), check_stopped(stack, young, fresh, begun=False))


async def _answer(value: bool | None) -> bool | None:
    return value
