"""Drivers without a worker, each under the interpreter that has its SDK."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

import pytest

from sandherd.client.toolchains import install, lock_of
from tests.drivers.driver_process import DriverProcess

BUILD = Path(__file__).parents[2] / "build"
TOOLCHAINS = BUILD / "toolchains"
UV = BUILD / "uv" / "bin"

StartDriver = Callable[..., Awaitable[DriverProcess]]


@pytest.fixture(scope="session")
def toolchain() -> Callable[[str], Path]:
    """The interpreter of a kind's toolchain, installed from its lock if it is not there; it is kept in `build`."""
    path = os.pathsep.join((str(UV), os.environ.get("PATH", "")))

    def find(kind: str) -> Path:
        python = TOOLCHAINS / kind / "bin" / "python"
        if python.exists():
            return python
        TOOLCHAINS.mkdir(parents=True, exist_ok=True)
        with (TOOLCHAINS / f".{kind}.lock").open("w") as only_one:
            flock(only_one, LOCK_EX)
            return python if python.exists() else install(kind, TOOLCHAINS, lock_of(kind), {**os.environ, "PATH": path})

    return find


@pytest.fixture
async def start_driver(tmp_path: Path) -> AsyncIterator[StartDriver]:
    """Starts drivers, by kind and with options of `DriverProcess`, or any module; kills what is left of them."""
    started: list[DriverProcess] = []

    async def start(kind: str = "", *, module: str = "", **options: Any) -> DriverProcess:
        driver = DriverProcess(module or f"sandherd_drivers.{kind}", tmp_path / f"driver-{len(started) + 1}", **options)
        started.append(driver)
        await driver.start()
        return driver

    yield start
    for driver in started:
        await driver.kill()
