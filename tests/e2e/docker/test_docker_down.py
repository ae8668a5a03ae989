"""Stopping a stack with containers of a real engine: `down` stops them, crashes do not."""

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiodocker import Docker

from sandherd.contracts.failures import ErrorType
from sandherd.contracts.specs import RetryPolicy
from sandherd.stack.control import status
from tests.e2e.docker.conftest import HOLD, at, new_home, ran
from tests.engines.docker import Engine
from tests.patience import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(900)]
TWICE = f'test "$SANDHERD_ATTEMPT" = 2 && exit 0; echo before; {HOLD}'
AGAIN = RetryPolicy(max_attempts=2, first_delay_seconds=0)


@pytest.fixture(scope="module")
def home_on_disk(docker_engine: Engine) -> Iterator[Path]:
    """The home of a stack that tests may stop and start."""
    home = new_home(docker_engine)
    try:
        yield home
    finally:
        ran(home, "down")
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
async def home(home_on_disk: Path) -> Path:
    """The home with a running stack."""
    await does(home_on_disk, "up")
    return home_on_disk


async def does(home: Path, word: str) -> None:
    """Run a command that must succeed."""
    done = await asyncio.to_thread(ran, home, word)
    assert done.returncode == 0, done.stdout + done.stderr


async def standing(engine: Engine, sandbox: str) -> tuple[str, dict[str, Any]]:
    """The id and the state of a sandbox's container."""
    docker = Docker(engine.host)
    try:
        shown = await docker.containers.container(f"sandherd-{sandbox}").show()
    finally:
        await docker.close()
    return shown["Id"], shown["State"]


async def running(engine: Engine) -> list[str]:
    """The running containers of sandboxes."""
    docker = Docker(engine.host)
    try:
        found = await docker.containers.list(filters='{"label": ["sandherd.dev/herd"]}')
    finally:
        await docker.close()
    return [one["Names"][0] for one in found]


async def kill_supervisor(home: Path) -> None:
    """Kill the supervisor; all processes that it has started live on."""
    pid = (await status(home)).supervisor_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE):
        while (await status(home)).supervisor_pid is not None:
            await asyncio.sleep(0.05)  # another process sends no notification


@pytest.mark.parametrize("how", ["in order", pytest.param("after its supervisor was killed", marks=pytest.mark.long)])
async def test_down_ends_containers_and_the_next_up_removes_them(home: Path, docker_engine: Engine, how: str) -> None:
    """Each worker reports the stop and ends by itself; its container is removed once that is stored."""
    async with at(home, docker_engine) as herd:
        task = await herd.submit(TWICE, retry=AGAIN)
        sandbox = await herd.began(task)
    if how != "in order":
        await kill_supervisor(home)
    await does(home, "down")
    assert await running(docker_engine) == []
    _, state = await standing(docker_engine, sandbox)
    assert (state["Status"], state["ExitCode"], state["OOMKilled"]) == ("exited", 0, False)
    await does(home, "up")
    async with at(home, docker_engine) as herd:
        view = await herd.ended(task)
        assert (view.state, view.attempt) == ("completed", 2), view.error
        assert (await herd.event(task, "agent.failed"))["data"]["error_type"] == ErrorType.STOPPED
        await herd.whole(sandbox, str(view.sandbox))
        assert "before" in str(await herd.events(task))


async def test_container_that_outlives_its_stack_is_adopted(home: Path, docker_engine: Engine) -> None:
    """After the kill of supervisor and spawner the agent continues, and the next spawner lets its attempt finish."""
    async with at(home, docker_engine) as herd:
        task = await herd.submit(HOLD)
        sandbox = await herd.began(task)
    before, _ = await standing(docker_engine, sandbox)
    spawner = next(part.pid for part in (await status(home)).parts if part.name == "spawner")
    assert spawner is not None
    await kill_supervisor(home)
    os.kill(spawner, signal.SIGKILL)
    await does(home, "up")
    found, state = await standing(docker_engine, sandbox)
    assert (found, state["Running"]) == (before, True)
    async with at(home, docker_engine) as herd:
        await herd.let_go(sandbox)
        view = await herd.ended(task)
        assert (view.state, view.attempt, view.sandbox) == ("completed", 1, sandbox), view.error
        await herd.whole(sandbox)
