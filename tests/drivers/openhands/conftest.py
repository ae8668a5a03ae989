"""The driver with the real SDK and its real terminal, against a scripted model. A start takes seconds."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.drivers.conftest import TOOLCHAINS, StartDriver
from tests.drivers.driver_process import DriverProcess
from tests.models.openai import OpenAIModel, openai_model

StartOpenHands = Callable[..., Awaitable[DriverProcess]]

INPUT_PRICE, OUTPUT_PRICE = 2, 10
"""Of one token, in micro-USD."""


async def appears(path: Path) -> None:
    """Wait until a file is there."""
    async with asyncio.timeout(90):
        while not path.exists():
            await asyncio.sleep(0.01)


def processes(driver: DriverProcess) -> list[str]:
    """The command lines of all living processes that have this driver's environment; its own is not one of them."""
    mark = f"TMUX_TMPDIR={driver.state_dir}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


@pytest.fixture
async def model() -> AsyncIterator[OpenAIModel]:
    """A model that answers by a script."""
    async with openai_model() as model:
        yield model


@pytest.fixture
def openhands(start_driver: StartDriver, model: OpenAIModel) -> StartOpenHands:
    """Starts the driver and gives it a task, with what else the harness says: `max_iterations=2`."""

    async def start(
        task: str,
        *,
        env: Mapping[str, str] | None = None,
        resume: Mapping[str, Any] | None = None,
        **harness: Any,
    ) -> DriverProcess:
        python = TOOLCHAINS / "openhands" / "bin" / "python"
        if not python.exists():
            pytest.fail(f"{python} is missing: these tests need the real SDK")
        variables = {
            "LLM_MODEL": "openai/scripted",
            "LLM_BASE_URL": model.url,
            "LLM_API_KEY": "sk-scripted",
            "LLM_INPUT_COST_PER_TOKEN": f"{INPUT_PRICE / 1e6:.7f}",
            "LLM_OUTPUT_COST_PER_TOKEN": f"{OUTPUT_PRICE / 1e6:.7f}",
            "LLM_NUM_RETRIES": "0",
            **(env or {}),
        }
        driver = await start_driver("openhands", python=python, env=variables)
        driver.begin(task, {"kind": "openhands", **harness}, resume)
        return driver

    return start
