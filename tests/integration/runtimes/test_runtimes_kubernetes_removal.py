"""The removal of boxes whose objects are held by finalizers waits for these, and is reported as it is."""

from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial

import pytest

from spawner.runtimes.boxes.provider import BoxState, ProviderError, ProviderFault
from spawner.runtimes.kubernetes import objects
from tests.doubles.kubernetes.cluster import Cluster
from tests.doubles.kubernetes.store import Json
from tests.integration.runtimes.clusters import change, left, listening, made, pod_of, until
from tests.integration.runtimes.conftest import WAITS, Boxes

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
HELD = {"metadata": {"finalizers": ["example.org/audit"]}}
RELEASED = {"metadata": {"finalizers": None}}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster of the test's own."""
    with Cluster(sandboxes="v1beta1") as one:
        yield one


@pytest.fixture
async def pods(cluster: Cluster) -> AsyncIterator[Boxes]:
    async with made(cluster) as boxes:
        yield boxes


async def test_a_removal_ends_when_the_last_finalizer_is_removed(cluster: Cluster, pods: Boxes) -> None:
    """The removal ends with the last finalizer; nothing of the box is left then."""
    box = await pods.make()
    change(cluster, box.name, HELD)
    removing = pods.removing(box.name)
    await until(lambda: pod_of(cluster, box.name)["metadata"].get("deletionGracePeriodSeconds") == 0)
    assert not removing.done()
    change(cluster, box.name, RELEASED)
    await removing
    assert left(cluster) == []


@pytest.mark.parametrize("held", ["pod", "sandbox"])
async def test_a_removal_that_a_finalizer_prevents_fails_and_names_it(
    cluster: Cluster, held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the finalizer; the removal is not complete and may be repeated."""
    monkeypatch.setattr(objects, "_FINALIZERS_SECONDS", 0.5)
    async with made(cluster, "v1beta1") as boxes:
        box = await boxes.make()
        kind = "pods" if held == "pod" else "sandboxes"
        hold(cluster, kind, HELD)
        for _ in range(2):
            with pytest.raises(ProviderError, match=r"finalizers still hold it: example\.org/audit") as caught:
                await boxes.provider.remove(box.name)
            assert caught.value.fault is ProviderFault.TIMED_OUT
        hold(cluster, kind, RELEASED)
        await boxes.provider.remove(box.name)
        assert cluster.objects("pods") + cluster.objects("sandboxes") == []


def hold(cluster: Cluster, kind: str, patch: Json) -> None:
    """Set or remove the finalizer of the only object of a kind."""
    for item in cluster.objects(kind):
        meta = item["metadata"]
        cluster.now(partial(cluster.store.patch, kind, meta["namespace"], meta["name"], patch))


async def test_a_box_is_not_created_where_its_removal_has_not_ended(
    cluster: Cluster, pods: Boxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The creation is refused for the moment, naming what holds the former box."""
    monkeypatch.setattr(objects, "_FINALIZERS_SECONDS", 0.5)
    spec = pods.spec()
    await pods.provider.create(spec)
    change(cluster, spec.name, HELD)
    with pytest.raises(ProviderError):
        await pods.provider.remove(spec.name)
    with pytest.raises(ProviderError, match=r"example\.org/audit.*retry later") as caught:
        await pods.provider.create(spec)
    assert caught.value.fault is ProviderFault.TRANSIENT
    change(cluster, spec.name, RELEASED)
    assert (await pods.provider.create(spec)).alive


async def test_a_box_that_its_cluster_has_ended_is_not_created_with_success(cluster: Cluster, pods: Boxes) -> None:
    """If the reply to a creation was lost, and the pod was evicted since, its loss is reported."""
    spec = pods.spec()
    await pods.provider.create(spec)
    await cluster.later(cluster.kubelet.evict(pod_of(cluster, spec.name), "Evicted", "low on memory"))
    with pytest.raises(ProviderError, match=r"evicted.*low on memory") as caught:
        await pods.provider.create(spec)
    assert caught.value.fault is ProviderFault.NOT_FOUND


async def test_box_that_its_cluster_ends_during_its_creation_is_not_created_with_success(
    cluster: Cluster, pods: Boxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if its program had begun, the caller gets the reason instead of a failed box."""
    spec = pods.spec()
    begin = objects.BoxObjects.note

    async def evicted(self: objects.BoxObjects, name: str, notes: Mapping[str, str]) -> None:
        await begin(self, name, notes)
        await cluster.later(cluster.kubelet.evict(pod_of(cluster, name), "Evicted", "low on memory"))

    monkeypatch.setattr(objects.BoxObjects, "note", evicted)
    with pytest.raises(ProviderError, match=r"evicted.*low on memory") as caught:
        await pods.provider.create(spec)
    assert caught.value.fault is ProviderFault.NOT_FOUND


async def test_a_removal_is_not_attributed_to_the_cluster(cluster: Cluster, pods: Boxes) -> None:
    """A box that we or a user remove is read as deleted, and not as ended by its cluster."""
    box = await pods.make(WAITS)
    change(cluster, box.name, HELD)
    async with listening(pods) as received:
        removing = pods.removing(box.name)
        await until(lambda: pod_of(cluster, box.name)["metadata"].get("deletionGracePeriodSeconds") == 0)
        found = await pods.until(box, lambda one: one is not None and one.state is BoxState.FAILED)
        assert found is not None
        assert "was deleted" in found.problem
        assert "by its cluster" not in found.problem
        change(cluster, box.name, RELEASED)
        await removing
        await until(lambda: box.name in received)
