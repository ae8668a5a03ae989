"""The ACP driver with the scripted agent, each in a process of its own, under the toolchain's interpreter."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.drivers.conftest import StartDriver
from tests.drivers.driver_process import DriverProcess

AGENT = Path(__file__).parent / "scripted_agent.py"

Converse = Callable[..., Awaitable[DriverProcess]]


@pytest.fixture
def python(toolchain: Callable[[str], Path]) -> Path:
    return toolchain("acp")


@pytest.fixture
def converse(start_driver: StartDriver, python: Path) -> Converse:
    """Starts a driver and gives it its task; the words after that are what the agent is."""

    async def begin(task: str, *are: str, resume: Mapping[str, Any] | None = None, **env: str) -> DriverProcess:
        driver = await start_driver("acp", python=python, env=env)
        driver.begin(task, {"kind": "acp", "argv": [str(python), str(AGENT), *are]}, resume)
        return driver

    return begin
