"""A slow API server and an invalid kubeconfig are reported as such."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from aiohttp import web

from sandherd.settings import Settings
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault
from spawner.runtimes.kubernetes.factory import open_kubernetes
from tests.doubles.kubernetes.api import Fault
from tests.doubles.kubernetes.cluster import IMAGE, Cluster
from tests.doubles.kubernetes.provider import opened
from tests.doubles.kubernetes.store import ApiError
from tests.integration.runtimes.conftest import Boxes

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
SLOW = ApiError(504, "Timeout", "the server was unable to return a response in the time allotted")


class OfAll(Fault):
    """The response to lists and watches of pods, but not to a get of one."""

    def takes(self, request: web.Request) -> bool:
        """Whether the path ends with the resource."""
        return self.times > 0 and request.method == "GET" and request.path.endswith("/pods")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster of one test."""
    with Cluster() as one:
        yield one


@pytest.fixture
async def pods(cluster: Cluster) -> AsyncIterator[Boxes]:
    """Boxes in this cluster."""
    boxes = Boxes(await opened(cluster)())
    try:
        yield boxes
    finally:
        cluster.now(cluster.api.faults.clear)
        await boxes.close()


def slow(cluster: Cluster) -> None:
    cluster.now(lambda: cluster.api.faults.append(OfAll("GET", "", SLOW, times=2)))


async def test_slow_replies_do_not_shorten_the_grace(cluster: Cluster, pods: Boxes) -> None:
    """A pod is created once, and its program has its whole grace."""
    slow(cluster)
    box = await pods.make('trap "sleep 1; exit 5" TERM; echo > here; while :; do sleep 0.1; done')
    await pods.sh(box, "until test -e here; do sleep 0.05; done")
    slow(cluster)
    await pods.provider.stop(box.name, 20)
    found = await pods.until(box, lambda one: one is not None and one.end is not None)
    assert found is not None
    assert found.end is not None
    assert (found.id, found.end.code) == (box.id, 5)


@pytest.mark.parametrize("text", ["a: [", "- none", "none", "current-context: {}\nclusters: 1\n"])
async def test_invalid_kubeconfig_is_reported(tmp_path: Path, text: str) -> None:
    """The error has the name of the file, and nothing of its content."""
    file = tmp_path / "config"
    file.write_text(f"{text} # tok-0123456789")
    settings = Settings(sandbox_image=IMAGE, kubernetes_config=file)
    with pytest.raises(RuntimeFailedError, match="config") as caught:
        await open_kubernetes(settings, "h1")
    assert caught.value.fault is RuntimeFault.REFUSED
    assert "tok-0123456789" not in str(caught.value)
