"""A herd at work, and a real Prometheus that watches it: one for all tests here."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from unittest.mock import patch
from urllib.parse import urlsplit

import pytest

from sandherd.client import Context, Herd
from sandherd.contracts.commands import CommandHarness, Retry, TaskSpec
from sandherd.contracts.names import new_name
from sandherd.stack.control import down, status, up
from tests.engines.prometheus import Prometheus, prometheus

AGENT: Final = Path(__file__).with_name("agent.py").read_text()
ROOT: Final = Path(__file__).parents[3]
HERD: Final = "a-herd"
SET: Final = {"HEARTBEAT_INTERVAL": "1", "SANDHERD_CHECK_INTERVAL": "1"}


@dataclass(frozen=True)
class Watched:
    """A stack that has worked, what watched it, and the sandbox whose agent was steered."""

    home: Path
    prometheus: Prometheus
    sandbox: str


@pytest.fixture(scope="package")
def watched() -> Iterator[Watched]:
    """Two rounds of work, as the first time that something is counted is no rise yet."""
    home = Path(tempfile.mkdtemp(prefix="watched-"))
    try:
        with patch.dict(os.environ, SET):
            asyncio.run(up(home))
        parts = asyncio.run(status(home)).parts
        with prometheus(HERD, {part.name: urlsplit(part.http).netloc for part in parts if part.http}) as seen:
            asyncio.run(work(home))
            seen.until(lambda: seen.numbers("sandherd_task_seconds_count"), "the first round is not seen")
            sandbox = asyncio.run(work(home))
            yield Watched(home, seen, sandbox)
    finally:
        asyncio.run(down(home))
        shutil.rmtree(home, ignore_errors=True)


async def work(home: Path) -> str:
    """A task that is steered, one that fails twice, a message that is none, and a command in a sandbox."""
    async with Herd.connect(Context.resolve(home=home, environ={})) as herd:
        steered, failing = await herd.submit(steered_task()), await herd.submit(failing_task())
        subject = "sandherd.v1.command.spawner.submit_task.default"
        await herd.connection.bus.publish(subject, b"no command", msg_id=new_name("none"))
        ends = await asyncio.wait_for(asyncio.gather(herd.wait(steered), herd.wait(failing)), 60)
        assert [end.state for end in ends] == ["completed", "failed"]
        await look_into(herd)
        await stored(herd)
    assert ends[0].sandbox is not None
    return ends[0].sandbox


async def look_into(herd: Herd) -> None:
    """A command in a sandbox without a task, which is ended then."""
    made = await herd.create()
    assert made is not None
    ran = await herd.exec(made.sandbox, ["true"])
    assert (await ran.look()).exit_code == 0
    await herd.terminate(made.sandbox)


def steered_task() -> TaskSpec:
    harness = CommandHarness(argv=["python3", "agent.py"])
    return TaskSpec(text="go in a circle", harness=harness, files={"agent.py": AGENT}, retry=Retry(max_attempts=1))


def failing_task() -> TaskSpec:
    retry = Retry(max_attempts=2, first_delay_seconds=0, also=frozenset({"exit_status"}))
    return TaskSpec(text="fail", harness=CommandHarness(argv=["false"]), retry=retry)


async def stored(herd: Herd) -> None:
    """Until the history has all of it."""
    async with asyncio.timeout(30):
        while (await herd.audit()).unstored:
            await asyncio.sleep(0.05)
