"""Drivers without a worker, each under the interpreter that has its SDK."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.drivers.driver_process import DriverProcess
from tests.drivers.toolchains import TOOLCHAINS, interpreter

__all__ = ["TOOLCHAINS", "StartDriver"]


StartDriver = Callable[..., Awaitable[DriverProcess]]


@pytest.fixture(scope="session")
def toolchain() -> Callable[[str], Path]:
    """The interpreter of a kind's toolchain, installed from its lock file if it is missing; it is stored in `build`."""
    return interpreter


@pytest.fixture
async def start_driver(tmp_path: Path) -> AsyncIterator[StartDriver]:
    """A function that starts drivers, by kind and with options of `DriverProcess`, or any module; all are killed."""
    started: list[DriverProcess] = []

    async def start(kind: str = "", *, module: str = "", **options: Any) -> DriverProcess:
        driver = DriverProcess(module or f"sandherd_drivers.{kind}", tmp_path / f"driver-{len(started) + 1}", **options)
        started.append(driver)
        await driver.start()
        return driver

    yield start
    for driver in started:
        await driver.kill()
