"""The double of a cluster is spoken to by the real `kubectl`, as any cluster is."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.doubles.kubernetes.cluster import Cluster
from tests.doubles.kubernetes.opening import opened
from tests.engines.packages import unpacked
from tests.integration.runtimes.conftest import Boxes

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("kubernetes")]


@pytest.fixture(scope="module")
def kubectl() -> str:
    """Debian's, unpacked beside the checkout: no machine has to have one, and none is used that happens to be there."""
    return str(unpacked("kubernetes-client") / "usr" / "bin" / "kubectl")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as one:
        yield one


@pytest.fixture
async def pods(cluster: Cluster) -> AsyncIterator[Boxes]:
    boxes = Boxes(await opened(cluster)())
    yield boxes
    await boxes.close()


async def said(kubectl: str, cluster: Cluster, *words: str, code: int = 0) -> str:
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "HOME": str(cluster.folder)}
    done = await asyncio.to_thread(
        subprocess.run, [kubectl, *words], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


async def test_kubectl_gets_lists_watches_and_deletes_pods(cluster: Cluster, pods: Boxes, kubectl: Any) -> None:
    """With selectors; what is not there it says in its own words; a deletion is waited for by a watch."""
    box = await pods.make()
    name = f"sandherd-{box.name}"
    assert name in await said(kubectl, cluster, "get", "pods", "-l", "app.kubernetes.io/managed-by=sandherd")
    assert "No resources found" in await said(kubectl, cluster, "get", "pods", "-l", "app=other")
    path = "jsonpath={.status.phase} {.spec.containers[0].name}"
    assert await said(kubectl, cluster, "get", "pod", name, "-o", path) == "Running sandbox"
    assert "NotFound" in await said(kubectl, cluster, "get", "pod", "none", code=1)
    assert "condition met" in await said(kubectl, cluster, "wait", "--for=condition=PodScheduled", f"pod/{name}")
    assert "deleted" in await said(kubectl, cluster, "delete", "pod", name, "--grace-period=1")
    assert cluster.objects("pods") == []
