"""Helpers for tests of pods: boxes in a cluster, faults, what is left, and received changes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from spawner.runtimes.boxes.runtime import restarting_changes
from tests.doubles.kubernetes.api import Fault
from tests.doubles.kubernetes.cluster import Cluster
from tests.doubles.kubernetes.provider import opened
from tests.doubles.kubernetes.store import Json
from tests.integration.runtimes.conftest import Boxes
from tests.patience import PATIENCE

PODS: Final = "/pods"


@asynccontextmanager
async def made(cluster: Cluster, version: str | None = None, **kind: Any) -> AsyncIterator[Boxes]:
    """Boxes of this kind, which are removed at the end."""
    boxes = Boxes(await opened(cluster, version, **kind)())
    try:
        yield boxes
    finally:
        cluster.now(cluster.api.faults.clear)
        await boxes.close()


def breaks(cluster: Cluster, *faults: Fault) -> None:
    """Let these requests fail from now on."""
    cluster.now(lambda: cluster.api.faults.extend(faults))


def left(cluster: Cluster) -> list[str]:
    """The existing pods."""
    return [item["metadata"]["name"] for item in cluster.objects("pods")]


def pod_of(cluster: Cluster, name: str) -> Json:
    """The pod of a box."""
    (found,) = [pod for pod in cluster.objects("pods") if pod["metadata"]["name"].endswith(name)]
    return found


def change(cluster: Cluster, name: str, patch: Json) -> None:
    """Change the pod of a box, as its cluster does."""
    pod = pod_of(cluster, name)["metadata"]
    cluster.now(lambda: cluster.store.patch("pods", pod["namespace"], pod["name"], patch))


async def until(condition: Callable[[], Any]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.02)  # another thread sends no notification


@asynccontextmanager
async def listening(boxes: Boxes) -> AsyncIterator[set[str]]:
    """The names that are announced from now on."""
    received: set[str] = set()

    async def receive() -> None:
        async for name in restarting_changes(boxes.provider.changes, 0.1):
            received.add(name)

    hearing = asyncio.create_task(receive())
    try:
        yield received
    finally:
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)
