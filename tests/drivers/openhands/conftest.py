"""The driver with the real SDK and its real terminal, against a scripted model. A start takes seconds."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.drivers.conftest import StartDriver
from tests.drivers.driver_process import DriverProcess
from tests.models.openai import OpenAIModel, Request, Step, openai_model
from tests.models.openai_answers import Answer, calls
from tests.patience import PATIENCE
from tests.polling import eventually

StartOpenHands = Callable[..., Awaitable[DriverProcess]]

INPUT_PRICE, OUTPUT_PRICE = 2, 10
"""Prices of one token, in micro-USD."""


async def appears(path: Path) -> None:
    """Wait until a file exists."""
    async with asyncio.timeout(PATIENCE):
        while not path.exists():
            await asyncio.sleep(0.01)


def with_terminal(model: OpenAIModel, then: Answer) -> Step:
    """The steps `then`, after the agent's terminal has run a command.

    OpenHands waits one second for its shell. On a busy machine the first prompt comes later, and OpenHands reads it as
    the end of the first command, with an empty output and status.
    """

    def step(requested: Request) -> Answer:
        number = len(model.requests)
        if f"ready {number - 1}." in json.dumps(requested.messages[-1]):
            return then
        model._common.insert(0, step)
        return calls("terminal", command=f"echo ready $(({number + 1} - 1)).")

    return step


async def runs(driver: DriverProcess, command: str) -> None:
    """Wait until the agent has started this command."""
    await eventually(lambda: any(command in line for line in processes(driver)), command)


def started_by(driver: DriverProcess) -> Iterator[Path]:
    """All living processes that the driver has started, also those in their own sessions, from /proc."""
    mark = f"HOME={driver.home}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int(entry.name) != driver.process.pid and mark in (entry / "environ").read_bytes().split(b"\0"):
                yield entry


def processes(driver: DriverProcess) -> list[str]:
    """The command lines of these processes."""
    found = []
    for entry in started_by(driver):
        with suppress(OSError):
            found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


@pytest.fixture
async def model() -> AsyncIterator[OpenAIModel]:
    """A model with scripted responses."""
    async with openai_model() as model:
        yield model


@pytest.fixture
async def openhands(
    start_driver: StartDriver, toolchain: Callable[[str], Path], model: OpenAIModel
) -> AsyncIterator[StartOpenHands]:
    """A function that starts the driver and gives it a task, with fields of the harness: `max_iterations=2`.

    If a test leaves its driver running, the driver is killed, and so is its terminal, which has no parent.
    """
    drivers: list[DriverProcess] = []

    async def start(
        task: str,
        *,
        env: Mapping[str, str] | None = None,
        resume: Mapping[str, Any] | None = None,
        messages: Sequence[str] = (),
        **harness: Any,
    ) -> DriverProcess:
        variables = {
            "LLM_MODEL": "openai/scripted",
            "LLM_BASE_URL": model.url,
            "LLM_API_KEY": "sk-scripted",
            "LLM_INPUT_COST_PER_TOKEN": f"{INPUT_PRICE / 1e6:.7f}",
            "LLM_OUTPUT_COST_PER_TOKEN": f"{OUTPUT_PRICE / 1e6:.7f}",
            "LLM_NUM_RETRIES": "0",
            **(env or {}),
        }
        driver = await start_driver("openhands", python=toolchain("openhands"), env=variables)
        drivers.append(driver)
        driver.begin(task, {"kind": "openhands", **harness}, resume, messages)
        return driver

    yield start
    for driver in drivers:
        await driver.kill()
        for process in started_by(driver):
            with suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)
