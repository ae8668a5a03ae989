"""A busy herd that a real Prometheus scrapes, for all tests here."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from unittest.mock import patch
from urllib.parse import urlsplit

import pytest

from sandherd.client import Context, Herd, HerdError
from sandherd.contracts.commands import CommandHarness, RetryPolicy, TaskSpec
from sandherd.contracts.failures import ErrorType
from sandherd.contracts.names import new_name
from sandherd.stack.control import down, status, up
from tests.engines.prometheus import Prometheus, prometheus
from tests.patience import PATIENCE
from tests.stored_history import all_stored

AGENT: Final = Path(__file__).with_name("agent.py").read_text()
ROOT: Final = Path(__file__).parents[3]
HERD: Final = "a-herd"
SET: Final = {"HEARTBEAT_INTERVAL": "1", "SANDHERD_CHECK_INTERVAL": "1"}


@dataclass(frozen=True)
class Watched:
    """A stack that has worked, its Prometheus, and the sandbox whose agent got a message."""

    home: Path
    prometheus: Prometheus
    sandbox: str


@pytest.fixture(scope="package")
def watched() -> Iterator[Watched]:
    """A series with a label of many values begins with its first count, so everything counted there happens twice."""
    home = Path(tempfile.mkdtemp(prefix="watched-"))
    try:
        with patch.dict(os.environ, SET):
            asyncio.run(up(home))
        parts = asyncio.run(status(home)).parts
        targets = {part.name: urlsplit(part.http).netloc for part in parts if part.http}
        with prometheus(HERD, targets) as seen:
            seen.until(lambda: len(seen.find("sandherd_ready")) == len(targets), lambda: "not all are seen")
            asyncio.run(fail(home))
            seen.until(lambda: seen.numbers("sandherd_task_seconds_count"), lambda: "the first task is not seen")
            yield Watched(home, seen, asyncio.run(work(home)))
    finally:
        asyncio.run(down(home))
        shutil.rmtree(home, ignore_errors=True)


async def fail(home: Path) -> None:
    """Cause failures: a task that fails twice, another task with its name, and an invalid command."""
    async with Herd.connect(Context.resolve(home=home, environ={})) as herd:
        retry = RetryPolicy(max_attempts=2, first_delay_seconds=0, also=frozenset({ErrorType.EXIT_STATUS}))
        failing = TaskSpec(text="fail", harness=CommandHarness(argv=["false"]), retry=retry)
        task = await herd.submit(failing)
        await ends(herd, task, "failed")
        await herd.submit(failing.model_copy(update={"text": "fail as well"}), task=task)
        subject = "sandherd.v1.command.spawner.submit_task.default"
        await herd.connection.bus.publish(subject, b"no command", msg_id=new_name("none"))


async def work(home: Path) -> str:
    """Cause all kinds of work: a message to an agent, a task that continues, a command in it, and a waiting task."""
    await fail(home)
    async with Herd.connect(Context.resolve(home=home, environ={})) as herd:
        harness = CommandHarness(argv=["python3", "agent.py"])
        circling = TaskSpec(text="go in a circle", harness=harness, files={"agent.py": AGENT})
        steered = await ends(herd, await herd.submit(circling), "completed")
        lasting = await herd.submit("listen", ["cat"])
        await herd.submit(TaskSpec(text="go on", harness=CommandHarness(argv=["true"]), depends_on=(lasting,)))
        ran = await herd.exec(await sandbox_of(herd, lasting), ["true"])
        assert [piece async for piece in ran.output()] == []
        assert ran.state is not None
        assert ran.state.exit_code == 0
        await herd.subscribe("read-by-nobody", start="all")
        await all_stored(herd)
    return steered


async def ends(herd: Herd, task: str, state: str) -> str:
    """Wait for this state; returns the sandbox."""
    ended = await asyncio.wait_for(herd.wait(task), PATIENCE)
    assert ended.state == state
    assert ended.sandbox is not None
    return ended.sandbox


async def sandbox_of(herd: Herd, task: str) -> str:
    """Wait until the task runs; returns its sandbox."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(HerdError):  # it is unknown until the spawner has read it
                seen = await herd.task(task)
                if seen.state == "running" and seen.sandbox is not None:
                    return seen.sandbox
            await asyncio.sleep(0.05)


@pytest.fixture(scope="session", autouse=True)
def _forked_services(sandherd_program: Path) -> None:
    """Make supervisors and services of these tests' stacks forks (`tests/preloaded_cli`)."""
