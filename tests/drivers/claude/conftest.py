"""The driver with the real SDK and its real program, against a scripted model."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.drivers.conftest import StartDriver
from tests.drivers.driver_process import DriverProcess
from tests.drivers.toolchains import interpreter
from tests.models.anthropic import AnthropicModel, anthropic_model
from tests.patience import PATIENCE

ENOUGH = "enough"
UNTIL_ENOUGH = f"touch begun; until test -e {ENOUGH}; do sleep 0.05; done"
"""A command without its own end; it ends with the test, even if its agent is killed."""

StartClaude = Callable[..., Awaitable[DriverProcess]]


async def appears(path: Path) -> None:
    """Wait until a file exists."""
    async with asyncio.timeout(PATIENCE):
        while not path.exists():
            await asyncio.sleep(0.01)


def program(driver: DriverProcess) -> psutil.Process:
    """Wait for the process of Claude Code."""
    for child in psutil.Process(driver.process.pid).children():
        with suppress(psutil.NoSuchProcess):
            if child.name() == "claude":
                return child
    raise AssertionError("it does not run")


@pytest.fixture
async def model() -> AsyncIterator[AnthropicModel]:
    """A model with scripted responses."""
    async with anthropic_model() as model:
        yield model


@pytest.fixture
async def claude(start_driver: StartDriver, model: AnthropicModel) -> AsyncIterator[StartClaude]:
    """A function that starts the driver and gives it a task, with fields of the harness. Its programs end with it."""
    started: list[DriverProcess] = []

    async def start(
        task: str,
        *,
        env: Mapping[str, str] | None = None,
        resume: Mapping[str, Any] | None = None,
        prepare: Callable[[DriverProcess], None] = lambda _driver: None,
        **harness: Any,
    ) -> DriverProcess:
        python = await asyncio.to_thread(interpreter, "claude")
        variables = {
            "ANTHROPIC_BASE_URL": model.url,
            "ANTHROPIC_API_KEY": "sk-ant-scripted",
            "CLAUDE_CODE_MAX_RETRIES": "0",
            **(env or {}),
        }
        driver = await start_driver("claude", python=python, env=variables)
        started.append(driver)
        prepare(driver)
        driver.begin(task, {"kind": "claude", **harness}, resume)
        return driver

    yield start
    for driver in started:
        await driver.kill()
        (driver.work_dir / ENOUGH).touch()
