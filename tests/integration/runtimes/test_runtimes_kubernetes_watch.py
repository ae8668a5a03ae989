"""Pods are watched by one list, and then by a watch that continues after each interruption."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.doubles.kubernetes.cluster import Cluster
from tests.integration.runtimes.clusters import listening, made, pod_of, until
from tests.integration.runtimes.conftest import Boxes

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster of one test: its lost history affects no other test."""
    with Cluster() as one:
        yield one


@pytest.fixture
async def pods(cluster: Cluster) -> AsyncIterator[Boxes]:
    async with made(cluster) as boxes:
        yield boxes


def requested(cluster: Cluster, what: str) -> list[str]:
    """The lists or the watches of all our pods that were requested."""
    paths = [path for method, path in list(cluster.api.requested) if method == "GET" and "labelSelector" in path]
    return [path for path in paths if ("watch=true" in path) == (what == "watches")]


async def test_idle_watch_sends_no_further_requests(cluster: Cluster, pods: Boxes) -> None:
    """One list and one watch are enough, however long they last."""
    async with listening(pods) as received:
        box = await pods.make()
        await until(lambda: box.name in received)
        marks = cluster.api.marks
        await until(lambda: cluster.api.marks >= marks + 2)
        assert (len(requested(cluster, "lists")), len(requested(cluster, "watches"))) == (1, 1)


async def test_change_during_a_cut_watch_is_reported(cluster: Cluster, pods: Boxes) -> None:
    """The next watch continues from the last version, also for the end of a pod that no list contains."""
    async with listening(pods) as received:
        box = await pods.make()
        await until(lambda: box.name in received)
        received.clear()
        pod = pod_of(cluster, box.name)
        cluster.now(cluster.api.cut)
        await cluster.later(cluster.kubelet.delete(pod, 0))
        await until(lambda: box.name in received)
        assert len(requested(cluster, "lists")) == 1
    assert await pods.provider.get(box.name) is None


async def test_watch_resumes_from_its_last_bookmark(cluster: Cluster, pods: Boxes) -> None:
    """The server no longer knows older versions, but no new list is needed."""
    async with listening(pods) as received:
        box = await pods.make()
        await until(lambda: box.name in received)
        cluster.now(lambda: cluster.store.create("networkpolicies", "sandherd", {"metadata": {"name": "other"}}))
        marks, version = cluster.api.marks, cluster.now(lambda: cluster.store.version)
        await until(lambda: cluster.api.marks >= marks + 2)

        def lost() -> None:
            cluster.api.cut()
            cluster.store.forget()

        cluster.now(lost)
        await until(lambda: len(requested(cluster, "watches")) == 2)
        assert f"resourceVersion={version}" in requested(cluster, "watches")[-1]
        received.clear()
        await pods.provider.remove(box.name)
        await until(lambda: box.name in received)
        assert len(requested(cluster, "lists")) == 1
