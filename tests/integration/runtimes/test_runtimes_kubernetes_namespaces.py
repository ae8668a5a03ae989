"""Namespaces of single projects: where sandboxes are created and found, and that each has the network policy."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace

import pytest

from sandherd.settings import Settings
from spawner.runtimes.boxes.box_files import HERD, PROJECT, SANDBOX
from spawner.runtimes.boxes.provider import BoxSpec, Provider
from spawner.runtimes.kubernetes.factory import open_kubernetes
from spawner.runtimes.runtime_logs import LogQuery, LogSource
from tests.doubles.kubernetes.cluster import IMAGE, Cluster
from tests.integration.runtimes.conftest import Boxes
from tests.patience import PATIENCE

MAPPED = {"team": "agents-of-team"}


@pytest.fixture
def cluster(kubernetes_cluster: Cluster) -> Cluster:
    return kubernetes_cluster


@pytest.fixture
async def boxes(cluster: Cluster) -> AsyncIterator[Boxes]:
    made = Boxes(await opened(cluster, MAPPED))
    yield made
    await made.close()


async def opened(cluster: Cluster, mapped: dict[str, str]) -> Provider:
    settings = Settings(sandbox_image=IMAGE, kubernetes_config=cluster.kubeconfig, kubernetes_storage_gb=0.5)
    settings = settings.model_copy(update={"kubernetes_namespaces": mapped})
    return (await open_kubernetes(settings, "h1"))._provider


def labels(boxes: Boxes, project: str, name: str) -> dict[str, str]:
    return {HERD: boxes.herd, SANDBOX: name, PROJECT: project}


def namespaces(cluster: Cluster, boxes: Boxes) -> dict[str, str]:
    pods = [pod["metadata"] for pod in cluster.objects("pods") if pod["metadata"]["labels"].get(HERD) == boxes.herd]
    return {pod["name"].removeprefix("sandherd-"): pod["namespace"] for pod in pods}


async def test_a_sandbox_is_in_the_namespace_of_its_project(boxes: Boxes, cluster: Cluster) -> None:
    """All calls find the sandbox there, and its changes are reported; each namespace has the herd's policy."""
    first = asyncio.create_task(first_change(boxes))
    specs = [boxes.spec(), boxes.spec("echo begun; sleep 99")]
    for spec, project in zip(specs, ("other", "team"), strict=True):
        await boxes.provider.create(changed(spec, labels(boxes, project, spec.name)))
    assert namespaces(cluster, boxes) == {specs[0].name: "sandherd", specs[1].name: "agents-of-team"}
    box = await boxes.provider.get(specs[1].name)
    assert box is not None
    assert (await boxes.sh(box, "echo here")).out == b"here\n"
    assert await log_of(boxes, box.name) == b"begun"
    assert {one.name for one in await boxes.provider.find({HERD: boxes.herd})} == {spec.name for spec in specs}
    policies = [
        one["metadata"] for one in cluster.objects("networkpolicies") if one["metadata"]["name"] == "sandherd-h1"
    ]
    assert {one["namespace"] for one in policies} == {"sandherd", "agents-of-team"}
    async with asyncio.timeout(PATIENCE):
        assert await first in {spec.name for spec in specs}


async def test_a_sandbox_is_found_where_its_project_was_before(boxes: Boxes, cluster: Cluster) -> None:
    """A new spawner finds it in the former namespace, too: it creates no second one, and can remove it."""
    spec = boxes.spec()
    spec = changed(spec, labels(boxes, "team", spec.name))
    made = await boxes.provider.create(spec)
    later = Boxes(await opened(cluster, {"team": "elsewhere", "other": "agents-of-team"}))
    try:
        assert (await later.provider.create(spec)).id == made.id
        await later.provider.remove(spec.name)
    finally:
        await later.close()
    assert namespaces(cluster, boxes) == {}
    assert await boxes.provider.get(spec.name) is None


def changed(spec: BoxSpec, labels: dict[str, str]) -> BoxSpec:
    return replace(spec, labels=labels)


async def first_change(boxes: Boxes) -> str:
    async with aclosing(boxes.provider.changes()) as names:  # type: ignore[type-var]  # a generator
        async for name in names:
            return name
    raise AssertionError("it ends only when it is closed")


async def log_of(boxes: Boxes, name: str) -> bytes:
    assert isinstance(boxes.provider, LogSource)
    async with aclosing(boxes.provider.logs(name, LogQuery(follow=True))) as pieces:  # type: ignore[type-var]
        async for piece in pieces:
            return piece.strip()
    return b""
