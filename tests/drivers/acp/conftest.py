"""The ACP driver with the scripted agent, each in a process of its own, under the toolchain's interpreter."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.drivers.conftest import StartDriver
from tests.drivers.driver_process import PACKAGES, DriverProcess

AGENT = Path(__file__).parent / "scripted_agent.py"

Converse = Callable[..., Awaitable[DriverProcess]]


@pytest.fixture
def python(toolchain: Callable[[str], Path]) -> Path:
    return toolchain("acp")


@pytest.fixture
def converse(start_driver: StartDriver, python: Path) -> Converse:
    """A function that starts a driver and gives it its task; further words are the agent's arguments."""

    async def begin(
        task: str,
        *are: str,
        resume: Mapping[str, Any] | None = None,
        hasty: str = "",
        servers: Mapping[str, Any] | None = None,
        approvals: Mapping[str, Any] | None = None,
        **env: str,
    ) -> DriverProcess:
        module, env = ("hasty.driver", {"HASTY": hasty}) if hasty else ("sandherd_drivers.acp", env)
        driver = await start_driver(module=module, python=python, env=env, packages=(PACKAGES, AGENT.parent))
        harness = {"kind": "acp", "argv": [str(python), str(AGENT), *are], "mcp_servers": dict(servers or {})}
        harness |= {"approvals": dict(approvals)} if approvals else {}
        driver.begin(task, harness, resume)
        return driver

    return begin
