"""How many requests sandboxes cause at their cluster's API server."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from sandherd.contracts.commands import TerminateSandbox
from sandherd.contracts.subjects import Principal
from sandherd.settings import Settings
from sandherd.stack.broker import Broker
from spawner.main import compose
from spawner.runtimes.boxes.box_files import HERD
from spawner.runtimes.boxes.provider import BoxState
from spawner.runtimes.boxes.runtime import BoxRuntime
from spawner.runtimes.contract import ObservedSandbox, Runtime
from spawner.runtimes.kubernetes.box_cache import BoxCache
from spawner.runtimes.kubernetes.cluster import WATCH
from spawner.runtimes.kubernetes.factory import open_kubernetes
from tests.doubles.kubernetes.api import Fault
from tests.doubles.kubernetes.cluster import IMAGE, Cluster
from tests.doubles.kubernetes.store import ApiError
from tests.integration.runtimes.clusters import PODS, breaks, left, listening, made, pod_of, until
from tests.integration.runtimes.conftest import Boxes
from tests.integration.spawner.conftest import ProjectUser
from tests.patience import PATIENCE
from tests.polling import eventually

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
CHECKS = 24
"""The number of checks in two minutes at the default interval."""
MINUTES = CHECKS * Settings().check_interval / 60
KINDS = [(None, 1), ("v1beta1", 2)]
"""The version of Sandboxes that a cluster has, and the number of watches that a spawner needs there."""


@pytest.mark.parametrize(("version", "watches"), KINDS, ids=["pod", "sandbox"])
async def test_an_idle_sandbox_costs_no_request(
    herd: Broker, tmp_path: Path, version: str | None, watches: int
) -> None:
    """Three idle sandboxes, checked as in two minutes by the real spawner, cause at most renewals of watches."""
    with Cluster(sandboxes=version) as cluster:
        counted: list[int] = []

        async def opening(_settings: Settings) -> Sequence[Runtime]:
            settings = Settings(sandbox_image=IMAGE, kubernetes_config=cluster.kubeconfig, nats_url=herd.url)
            return [counting(await open_kubernetes(settings, "idle"), cluster, counted)]

        settings = herd.settings(Principal.SPAWNER, home=tmp_path, runtime="kubernetes", check_interval=0.02)
        async with compose(settings, runtimes=opening).running(), herd.bus(Principal.CLIENT, project="p1") as bus:
            person = ProjectUser(bus, eventually, tmp_path)
            names = [await person.create() for _ in range(3)]
            for name in names:
                await person.sandbox_is(name, "running")
            first = len(counted) + 10  # until then the watches have reported the creations
            await eventually(lambda: len(counted) > first + CHECKS)
            requested = counted[first + CHECKS] - counted[first]
            renewals = watches * MINUTES * 60 / WATCH
            assert requested == 0, cluster.api.requested[-requested:]
            assert (requested + renewals) / MINUTES / len(names) <= 0.2
            for name in names:
                await person.command(TerminateSandbox(sandbox=name, reason="seen enough"), name)
            await eventually(lambda: not left(cluster))


def counting(runtime: BoxRuntime, cluster: Cluster, counted: list[int]) -> BoxRuntime:
    """Record at each check the number of requests so far."""
    find_all = runtime.find_all

    async def found() -> list[ObservedSandbox]:
        counted.append(len(cluster.api.requested))
        return await find_all()

    runtime.find_all = found  # type: ignore[method-assign]  # the real one, counted
    return runtime


@pytest.fixture(params=[None, "v1beta1"], ids=["pod", "sandbox"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of the test's own."""
    with Cluster(sandboxes=request.param) as one:
        yield one


@pytest.fixture
async def pods(cluster: Cluster) -> AsyncIterator[Boxes]:
    async with made(cluster, next(iter(cluster.api.groups.get("agents.x-k8s.io", {})), None)) as boxes:
        yield boxes


def requested(cluster: Cluster) -> int:
    return len(cluster.api.requested)


async def settled(cluster: Cluster, pods: Boxes, name: str) -> None:
    """Wait until the watches have reported the change of the box, so that reading it sends no request."""
    async with asyncio.timeout(PATIENCE):
        while True:
            before = requested(cluster)
            await pods.provider.get(name)
            if requested(cluster) == before:
                return
            await asyncio.sleep(0.02)  # another thread sends no notification


async def test_what_was_done_to_a_box_is_read_at_once(cluster: Cluster, pods: Boxes) -> None:
    """Its end, quarantine, second life and removal are known at once, though watches report them a moment later."""
    async with listening(pods) as received:
        box = await pods.make("trap 'exit 5' TERM; while :; do sleep 0.05; done")
        await until(lambda: box.name in received)
        for _ in range(2):
            await settled(cluster, pods, box.name)
            await pods.provider.stop(box.name, 10)
            ended = await pods.provider.get(box.name)
            assert ended is not None
            assert ended.end is not None
            await pods.provider.mark_quarantined(box.name)
            assert [one.quarantined for one in await pods.provider.find({HERD: pods.herd})] == [True]
            await pods.provider.unmark_quarantined(box.name)
            await pods.provider.start(box.name)
            assert [one.alive for one in await pods.provider.find({HERD: pods.herd})] == [True]
        await settled(cluster, pods, box.name)
        await pods.provider.remove(box.name)
        assert await pods.provider.get(box.name) is None
        assert await pods.provider.find({HERD: pods.herd}) == []


async def test_a_box_is_never_missing_only_because_a_watch_is_late(cluster: Cluster, pods: Boxes) -> None:
    """A box that watches have not reported is requested, also by a spawner that did not create it."""
    async with listening(pods) as received:
        first = await pods.make()
        await until(lambda: first.name in received)
        cache: BoxCache = pods.provider._cache  # type: ignore[attr-defined]  # as it is while a watch is late
        cache._pods.items.clear()
        found = await pods.provider.get(first.name)
        assert found is not None
        assert found.alive


async def test_nothing_is_read_from_copies_while_a_watch_is_broken(cluster: Cluster, pods: Boxes) -> None:
    """The cluster is requested, though lists are accepted, and changes in the meantime are known at once."""
    async with listening(pods) as received:
        box = await pods.make()
        await until(lambda: box.name in received)
        await settled(cluster, pods, box.name)
        pod = pod_of(cluster, box.name)
        breaks(cluster, Watches("GET", PODS, ApiError(403, "Forbidden", "no longer allowed"), times=10_000))
        cluster.now(cluster.api.cut)
        await until(lambda: not pods.provider._cache.is_current)  # type: ignore[attr-defined]  # the provider of these pods
        await cluster.later(cluster.kubelet.evict(pod, "Evicted", "low on memory"))
        for _ in range(3):
            found = await pods.provider.get(box.name)
            assert found is not None
            assert found.state is BoxState.FAILED
            await listed_again(cluster)
            assert not pods.provider._cache.is_current  # type: ignore[attr-defined]  # the provider of these pods


async def test_nothing_is_read_from_copies_until_a_new_watch_works(cluster: Cluster, pods: Boxes) -> None:
    """A new watch without messages does not confirm the copies; its first message does, without a new list."""
    async with listening(pods) as received:
        box = await pods.make()
        await until(lambda: box.name in received)
        await settled(cluster, pods, box.name)
        lists = listed(cluster)
        cluster.now(cluster.api.telling.clear)
        cluster.now(cluster.api.cut)
        await until(lambda: not pods.provider._cache.is_current)  # type: ignore[attr-defined]  # the provider of these pods
        await cluster.later(cluster.kubelet.evict(pod_of(cluster, box.name), "Evicted", "low on memory"))
        found = await pods.provider.get(box.name)
        assert found is not None
        assert found.state is BoxState.FAILED
        cluster.now(cluster.api.telling.set)
        await until(lambda: pods.provider._cache.is_current)  # type: ignore[attr-defined]  # the provider of these pods
        assert listed(cluster) == lists


def listed(cluster: Cluster) -> int:
    """How many times all objects were requested."""
    return sum("labelSelector" in path and "watch=true" not in path for _, path in list(cluster.api.requested))


async def listed_again(cluster: Cluster) -> None:
    """Wait until all objects are requested again."""
    lists = listed(cluster)
    await until(lambda: listed(cluster) > lists)


async def test_many_boxes_without_copies_are_read_by_one_list(cluster: Cluster, pods: Boxes) -> None:
    """One list of each kind is read; afterwards the unchanged objects have copies again."""
    async with listening(pods) as received:
        box = await pods.make()
        await until(lambda: box.name in received)
        await settled(cluster, pods, box.name)
        cache: BoxCache = pods.provider._cache  # type: ignore[attr-defined]  # as after that many writes
        cache._written |= dict.fromkeys([box.name, *(f"removed-{number}" for number in range(17))], 0)
        before = requested(cluster)
        assert [one.name for one in await pods.provider.find({HERD: pods.herd})] == [box.name]
        lists = requested(cluster) - before
        assert lists == (1 if cache._sandboxes is None else 2)
        await pods.provider.find({HERD: pods.herd})
        assert requested(cluster) - before == lists


class Watches(Fault):
    """Watches get this response."""

    def takes(self, request: object) -> bool:
        """Whether the query is that of a watch."""
        return super().takes(request) and "watch=true" in request.path_qs  # type: ignore[arg-type, attr-defined]
