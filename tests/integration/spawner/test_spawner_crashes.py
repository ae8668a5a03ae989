"""After a spawner is killed, the next one completes its tasks, and no event is lost or doubled."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.integration.spawner.spawner_environment import environment
from tests.preloaded_cli import preloaded_python

Eventually = Callable[..., Awaitable[Any]]
Start = Callable[[int], Awaitable[asyncio.subprocess.Process]]
DYING = Path(__file__).with_name("dying_spawner.py")
SLEEPER = ["/bin/sh", "-c", "touch up; exec sleep 600"]
WAITS_FOR_GO = ["/bin/sh", "-c", "touch up; while [ ! -e go ]; do sleep 0.05; done"]


@pytest.fixture
async def start(herd: Broker, home: Path, tmp_path: Path) -> AsyncIterator[Start]:
    """A function that starts a spawner as a separate process that is killed at its n-th act; all end after the test."""
    started: list[asyncio.subprocess.Process] = []
    settings = herd.settings(Principal.SPAWNER, home=home, check_interval=0.2, stop_grace=5, max_attempts=1)

    async def start_it(last: int) -> asyncio.subprocess.Process:
        with (tmp_path / "log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                preloaded_python(), str(DYING), str(last), env=environment(settings), stderr=log
            )
        started.append(process)
        return process

    yield start_it
    for process in started:
        if process.returncode is None:
            process.kill()
            await process.wait()


def log_of(tmp_path: Path) -> str:
    return (tmp_path / "log").read_text()


@pytest.mark.faults
@pytest.mark.parametrize(
    "acts",
    [(2, 9, 14, 21), pytest.param((2, 4, 7, 9, 12, 14, 17, 21, 26), marks=pytest.mark.long)],
    ids=["4 kills", "9 kills"],
)
async def test_tasks_end_correctly_under_repeated_kills(
    start: Start, person: Any, tmp_path: Path, acts: tuple[int, ...]
) -> None:
    """Tasks end correctly although each spawner is killed at a step: before or after a write, an event, or a start."""
    tasks = [await person.submit(["/bin/sh", "-c", "echo done > done"]) for _ in range(3)]
    tasks.append(await person.submit(["/bin/sh", "-c", "exit 3"]))
    for last in acts:
        process = await start(last)

        async def over(process: asyncio.subprocess.Process = process) -> bool:
            return process.returncode is not None or await done(person, tasks)

        await person.eventually(over)
    process = await start(0)
    views = [await person.ended(task) for task in tasks]
    assert [view.state for view in views] == ["completed"] * 3 + ["failed"], log_of(tmp_path)[-3000:]
    await person.all_gone()
    for view in views:
        await person.receives(view.sandbox, "sandbox.terminated")
    person.check_sequences()
    assert len([event for event in person.unique() if event["type"] == "sandbox.requested"]) == 4
    assert len([event for event in person.unique() if event["type"] == "agent.started"]) == 4


@pytest.mark.faults
async def test_files_of_a_dependency_are_taken_under_repeated_kills(start: Start, person: Any, tmp_path: Path) -> None:
    """A dependant has the files wherever a spawner is killed: around the storing of a result, or before its start."""
    pairs = []
    for number in range(2):
        build = await person.submit(["/bin/sh", "-c", f"echo {number} >out.txt"], keep_work=True)
        inputs = ({"task": build, "paths": ["out.txt"]},)
        argv = ["/bin/sh", "-c", f'test "$(cat out.txt)" = {number}']
        pairs += [build, await person.submit(argv, depends_on=(build,), inputs=inputs)]
    for last in (3, 8, 11, 14, 17, 20):
        process = await start(last)

        async def over(process: asyncio.subprocess.Process = process) -> bool:
            return process.returncode is not None or await done(person, pairs)

        await person.eventually(over)
    await start(0)
    views = [await person.ended(task) for task in pairs]
    assert [(view.state, view.error) for view in views] == [("completed", None)] * 4, log_of(tmp_path)[-3000:]
    await person.all_gone()
    person.check_sequences()


async def done(person: Any, tasks: list[str]) -> bool:
    views = [await person.try_task(task) for task in tasks]
    return all(view is not None and view.ended_at for view in views)
