"""Opens Daytona's adapter at the double."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from daytona import AsyncDaytona, DaytonaConfig

from spawner.runtimes.boxes.provider import Provider
from spawner.runtimes.boxes.retry import RetryLimits
from spawner.runtimes.daytona.provider import DaytonaProvider
from spawner.runtimes.daytona.sandboxes import DaytonaOptions
from tests.doubles.daytona.double import KEY, SNAPSHOT, Double


def cloud(double: Double, **kind: Any) -> DaytonaProvider:
    """The adapter with the real SDK, at this double; its waits are as short as possible."""
    daytona = AsyncDaytona(DaytonaConfig(api_key=KEY, api_url=double.api_url, target="us"))
    given = {"snapshot": SNAPSHOT, "patience": 30.0, "poll_interval": 0.2, "secrets": (KEY,), **kind}
    return DaytonaProvider(daytona, DaytonaOptions(**given), retries=RetryLimits(first=0.05, longest=1.0))


@pytest.fixture
async def daytona_double() -> AsyncIterator[Double]:
    """A Daytona for one test. Nothing of it is left on this host, whether the test fails or not."""
    async with Double() as double:
        yield double


@pytest.fixture
def open_daytona(daytona_double: Double) -> Callable[[], Awaitable[Provider]]:
    """A function that opens the adapter; a test may call it several times."""

    async def opened() -> Provider:
        return cloud(daytona_double)

    return opened
