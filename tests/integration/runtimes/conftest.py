"""Every provider of boxes, on the real service or on a double that responds as the real one does."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from aiodocker import Docker

from sandherd.contracts.specs import SandboxLimits
from spawner.runtimes.boxes.box_files import HERD, PROJECT, ROOT, SANDBOX, STATE
from spawner.runtimes.boxes.provider import Box, BoxSpec, Command, CommandResult, File, Provider
from spawner.runtimes.docker.containers import ContainerOptions
from spawner.runtimes.docker.provider import DockerProvider
from tests.doubles.daytona.provider import daytona_double, open_daytona
from tests.doubles.kubernetes.cluster import Cluster as KubernetesCluster
from tests.doubles.kubernetes.provider import opened
from tests.doubles.remote.provider import open_remote, remote_double
from tests.doubles.toolchains import with_worker
from tests.engines.docker import IMAGE
from tests.engines.docker import Engine as RealEngine
from tests.engines.packages import alone
from tests.patience import PATIENCE
from tests.shared_broker import herd

# Fixtures that are defined in other modules.
__all__ = ["daytona_double", "herd", "open_daytona", "open_remote", "remote_double"]
PROVIDERS = ("docker", "daytona", "kubernetes", "remote")
WAITS = 'trap "exit 0" TERM; while :; do sleep 0.1; done'


class Boxes:
    """A provider with the boxes of one test, which are removed at its end."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self.herd = uuid4().hex[:16]
        self._names: set[str] = set()

    def spec(self, script: str = WAITS, **changed: Any) -> BoxSpec:
        """The specification of a box that runs this script, under a new name."""
        name = f"sbx-{uuid4().hex[:12]}"
        spec = BoxSpec(
            name=name,
            labels={HERD: self.herd, SANDBOX: name, PROJECT: "p1"},
            image=None,
            program=["/bin/sh", "-c", script],
            environment={"GIVEN": "a value"},
            files=[File(f"{STATE}/task.json", b'{"text": "\xc3\xbc"}')],
            limits=SandboxLimits(memory_mb=128, processes=64),
            stop_grace=2,
        )
        spec = replace(spec, **changed)
        self._names.add(spec.name)
        return spec

    async def make(self, script: str = WAITS, **changed: Any) -> Box:
        """Create a box that runs."""
        return await self.provider.create(self.spec(script, **changed))

    def removing(self, name: str) -> asyncio.Task[None]:
        """Begin to remove the box."""
        return asyncio.create_task(self.provider.remove(name))

    async def sh(self, box: Box, script: str, **more: Any) -> CommandResult:
        """Run a script in the box."""
        return await self.provider.run(box.name, Command(argv=["/bin/sh", "-c", script], **more))

    async def until(self, box: Box, condition: Callable[[Box | None], bool]) -> Box | None:
        """Wait until the box has this state; returns it."""
        async with asyncio.timeout(PATIENCE):
            while not condition(found := await self.provider.get(box.name)):
                await asyncio.sleep(0.02)  # the boxes of a provider send no notifications
        return found

    async def close(self) -> None:
        """Remove all boxes."""
        for name in self._names:
            await self.provider.remove(name)
        await self.provider.close()


Open = Callable[[], Awaitable[Provider]]


@pytest.fixture(params=PROVIDERS)
def open_provider(request: pytest.FixtureRequest) -> Open:
    """A function that opens the provider again, as a restarted spawner does."""
    opening: Open = request.getfixturevalue(f"open_{request.param}")
    return opening


@pytest.fixture
async def boxes(open_provider: Open) -> AsyncIterator[Boxes]:
    """Each provider in turn."""
    made = Boxes(await open_provider())
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
def open_docker(docker_engine: RealEngine) -> Open:
    async def opened() -> Provider:
        return DockerProvider(Docker(docker_engine.host), ContainerOptions(IMAGE, network="none"))

    return opened


@pytest.fixture
def open_docker_reaching(docker_engine: RealEngine) -> Open:
    """Containers that can reach servers on this host."""

    async def opened() -> Provider:
        return DockerProvider(Docker(docker_engine.host), ContainerOptions(IMAGE, network="host"))

    return opened


@pytest.fixture(scope="session")
def kubernetes_cluster() -> Iterator[KubernetesCluster]:
    """A cluster for the whole run of this process."""
    with KubernetesCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def packed_worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The worker for images that contain it, packed once for all processes of a run."""
    folder = tmp_path_factory.getbasetemp()
    with alone("packed-worker", folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) as place:
        return place if place.exists() else with_worker(place.with_name("packing-worker")).rename(place)


@pytest.fixture
def open_kubernetes(kubernetes_cluster: KubernetesCluster) -> Open:
    return opened(kubernetes_cluster)


WORK = f"{ROOT}/work"
