"""Sandboxes of agents.x-k8s.io, if a cluster has them: a controller creates their pods, and replaces them."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from sandherd.contracts.commands import RetryPolicy
from sandherd.contracts.subjects import Principal
from sandherd.settings import Settings
from sandherd.stack.broker import Broker
from spawner.main import compose
from spawner.runtimes.boxes.box_files import HERD
from spawner.runtimes.boxes.provider import BoxState, ProviderError, ProviderFault
from spawner.runtimes.contract import Runtime
from spawner.runtimes.kubernetes.factory import open_kubernetes
from tests.doubles.kubernetes.cluster import IMAGE, Cluster
from tests.doubles.kubernetes.provider import opened
from tests.doubles.kubernetes.store import ApiError
from tests.integration.runtimes.clusters import left, made, pod_of
from tests.integration.spawner.conftest import ProjectUser
from tests.polling import eventually

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
VERSIONS = ("v1alpha1", "v1beta1")


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_sandbox_is_made_where_the_cluster_has_them(version: str) -> None:
    """A Sandbox is one box with its pod; it is stopped, started and removed like a pod. A replaced pod is a loss."""
    with Cluster(sandboxes=version) as cluster:
        settings = Settings(sandbox_image=IMAGE, kubernetes_config=cluster.kubeconfig)
        runtime = await open_kubernetes(settings, "h1")
        assert f"agents.x-k8s.io/{version}" in str(runtime._provider._objects.created_path)  # type: ignore[attr-defined]  # a private part of any runtime
        await runtime.close()
        async with made(cluster, version) as boxes:
            box = await boxes.make("trap 'exit 5' TERM; while :; do sleep 0.1; done")
            assert (len(cluster.objects("sandboxes")), len(left(cluster))) == (1, 1)
            assert [one.name for one in await boxes.provider.find({HERD: boxes.herd})] == [box.name]
            await boxes.provider.stop(box.name, 10)
            await boxes.provider.start(box.name)
            assert (await boxes.sh(box, "echo here")).out == b"here\n"
            await cluster.later(cluster.kubelet.delete(pod_of(cluster, box.name), 0))
            lost = await boxes.until(box, lambda one: one is not None and one.state is BoxState.FAILED)
            assert lost is not None
            assert (lost.alive, lost.runs >= 1) == (False, True)
            await boxes.provider.remove(box.name)
        assert cluster.objects("sandboxes") == []
        assert left(cluster) == []


@pytest.mark.parametrize("first", ["sandbox", "pod"])
async def test_what_was_made_as_the_one_is_ended_where_the_other_is_made(first: str) -> None:
    """After the setting was changed, or the cluster got Sandboxes, nothing of the former kind is left."""
    with Cluster(sandboxes="v1beta1") as cluster:
        before, after = ("v1beta1", None) if first == "sandbox" else (None, "v1beta1")
        async with made(cluster, before) as boxes:
            box = await boxes.make("trap 'exit 5' TERM; while :; do sleep 0.1; done")
            other = await opened(cluster, after)()
            try:
                assert [one.name for one in await other.find({HERD: boxes.herd})] == [box.name]
                await other.stop(box.name, 10)
                await other.start(box.name)
                await other.remove(box.name)
            finally:
                await other.close()
            assert cluster.objects("sandboxes") + cluster.objects("pods") == []


QUOTA = 'pods "x" is forbidden: exceeded quota: small, requested: pods=1, used: pods=4, limited: pods=4'
POLICY = 'pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true'
DOWN = 'Internal error occurred: failed calling webhook "w": connection refused'


@pytest.mark.parametrize(
    ("why", "fault"), [(QUOTA, ProviderFault.QUOTA), (POLICY, ProviderFault.REFUSED), (DOWN, ProviderFault.TIMED_OUT)]
)
async def test_what_its_controller_is_refused_is_reported(why: str, fault: ProviderFault) -> None:
    """A refusal in its Sandbox's conditions is reported at once if no retry may succeed; else after a wait."""
    with Cluster(sandboxes="v1beta1") as cluster:
        cluster.now(lambda: setattr(cluster.api, "refused_pods", ApiError(403, "Forbidden", why)))
        async with made(cluster, "v1beta1", pending=5 if fault is ProviderFault.TIMED_OUT else 600) as boxes:
            with pytest.raises(ProviderError) as caught:
                await boxes.make()
            assert caught.value.fault is fault
            assert why in str(caught.value)
            assert cluster.objects("sandboxes") == []


async def test_drained_sandbox_names_the_drain(herd: Broker, tmp_path: Path) -> None:
    """The worker only receives a signal, but the error of its task has the reason, and may be retried."""
    with Cluster() as cluster:

        async def opening(_settings: Settings) -> Sequence[Runtime]:
            settings = Settings(sandbox_image=IMAGE, kubernetes_config=cluster.kubeconfig, nats_url=herd.url)
            return [await open_kubernetes(settings, "drained")]

        settings = herd.settings(Principal.SPAWNER, home=tmp_path, runtime="kubernetes", check_interval=0.2)
        async with compose(settings, runtimes=opening).running(), herd.bus(Principal.CLIENT, project="p1") as bus:
            person = ProjectUser(bus, eventually, tmp_path)
            task = await person.submit(["/bin/sh", "-c", "sleep 100"], retry=RetryPolicy(max_attempts=1))
            view = await person.reaches(task, "running")
            assert view.sandbox is not None
            await cluster.later(cluster.kubelet.drain(pod_of(cluster, view.sandbox)))
            ended = await person.ended(task)
            assert ended.error_type == "stopped"
            assert ended.error is not None
            assert "evicted on request" in ended.error


async def test_a_whole_task_in_a_sandbox(herd: Broker, tmp_path: Path) -> None:
    """The real broker, spawner and worker complete a task in a Sandbox, of which nothing is left."""
    with Cluster(sandboxes="v1beta1") as cluster:
        made_as: list[str] = []

        async def opening(_settings: Settings) -> Sequence[Runtime]:
            settings = Settings(sandbox_image=IMAGE, kubernetes_config=cluster.kubeconfig, nats_url=herd.url)
            return [await open_kubernetes(settings, "whole")]

        cluster.now(lambda: cluster.store.listeners.append(lambda event: made_as.append(event.resource)))
        settings = herd.settings(Principal.SPAWNER, home=tmp_path, runtime="kubernetes", check_interval=0.2)
        async with compose(settings, runtimes=opening).running(), herd.bus(Principal.CLIENT, project="p1") as bus:
            person = ProjectUser(bus, eventually, tmp_path)
            await person.listen()
            task = await person.submit(["/bin/sh", "-c", "printf 'one\\n' > made.txt; echo done"])
            view = await person.ended(task)
            assert (view.state, view.error) == ("completed", None)
            assert view.sandbox is not None
            await person.receives(view.sandbox, "sandbox.terminated")
            await eventually(lambda: _gone(cluster))
        assert "sandboxes" in made_as
        assert person.event_data(view.sandbox, "agent.file_edited")["file_path"] == "made.txt"


async def _gone(cluster: Cluster) -> bool:
    return cluster.objects("sandboxes") + cluster.objects("pods") == []
