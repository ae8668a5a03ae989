"""Opens the adapter of the remote runtime at the double."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from spawner.runtimes.boxes.provider import Provider
from spawner.runtimes.boxes.retry import RetryLimits
from spawner.runtimes.remote.api_clients import HttpSession, RuntimeApi
from spawner.runtimes.remote.creation import RemoteRuntimeOptions
from spawner.runtimes.remote.provider import RemoteProvider
from tests.doubles.remote.double import COMMAND, IMAGE, KEY, Double

PATIENCE = RetryLimits(first=0.05, longest=1.0)


def remote(double: Double, key: str = KEY, **kind: Any) -> RemoteProvider:
    """The adapter at this double; its waits are as short as possible."""
    http = HttpSession(30.0)
    given = {"image": IMAGE, "command": COMMAND, "init_timeout": 60.0, "poll": 0.2, "retries": PATIENCE, **kind}
    return RemoteProvider(http, RuntimeApi(http, double.url, key, PATIENCE), RemoteRuntimeOptions(**given))


@pytest.fixture
async def remote_double() -> AsyncIterator[Double]:
    """A Runtime API for one test. Nothing of it is left on this host, whether the test fails or not."""
    async with Double() as double:
        yield double


@pytest.fixture
def open_remote(remote_double: Double) -> Callable[[], Awaitable[Provider]]:
    """A function that opens the adapter; a test may call it several times."""

    async def opened() -> Provider:
        return remote(remote_double)

    return opened
