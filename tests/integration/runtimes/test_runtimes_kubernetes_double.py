"""The double of a cluster works with the real `kubectl`."""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from tests.doubles.kubernetes.cluster import Cluster
from tests.doubles.kubernetes.provider import opened
from tests.engines.packages import unpacked
from tests.integration.runtimes.conftest import Boxes

pytestmark = [pytest.mark.timeout(900)]
WEBSOCKETS = 31
"""The minor version since which commands use WebSockets; earlier ones use SPDY, which nothing here implements."""


@dataclass(frozen=True)
class Kubectl:
    path: str
    minor: int


@pytest.fixture(scope="module")
def kubectl() -> Kubectl:
    """This machine's kubectl if it is new enough for WebSockets; else Debian's, beside the checkout."""
    found = shutil.which("kubectl")
    if found and (own := Kubectl(found, minor(found))).minor >= WEBSOCKETS:
        return own
    debians = str(unpacked("kubernetes-client") / "usr" / "bin" / "kubectl")
    return Kubectl(debians, minor(debians))


def minor(path: str) -> int:
    words = [path, "version", "--client", "-o", "json"]
    kubectl_output = subprocess.run(words, capture_output=True, check=True, text=True, timeout=60).stdout
    return int(json.loads(kubectl_output)["clientVersion"]["minor"].rstrip("+"))


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as one:
        one.api.open_to_all = True  # kubectl shows no token to a server without TLS
        yield one


@pytest.fixture
async def pods(cluster: Cluster) -> AsyncIterator[Boxes]:
    boxes = Boxes(await opened(cluster)())
    yield boxes
    await boxes.close()


async def kubectl_output(kubectl: Kubectl, cluster: Cluster, *words: str, code: int = 0) -> str:
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "HOME": str(cluster.folder)}
    done = await asyncio.to_thread(
        subprocess.run,
        [kubectl.path, *words],
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


async def test_kubectl_lists_watches_and_deletes_pods(cluster: Cluster, pods: Boxes, kubectl: Kubectl) -> None:
    """Selectors work, a missing pod leads to kubectl's own error, and a watch waits for a deletion."""
    box = await pods.make()
    name = f"sandherd-{box.name}"
    assert name in await kubectl_output(kubectl, cluster, "get", "pods", "-l", "app.kubernetes.io/managed-by=sandherd")
    assert "No resources found" in await kubectl_output(kubectl, cluster, "get", "pods", "-l", "app=other")
    path = "jsonpath={.status.phase} {.spec.containers[0].name}"
    assert await kubectl_output(kubectl, cluster, "get", "pod", name, "-o", path) == "Running sandbox"
    assert "NotFound" in await kubectl_output(kubectl, cluster, "get", "pod", "none", code=1)
    assert "condition met" in await kubectl_output(
        kubectl, cluster, "wait", "--for=condition=PodScheduled", f"pod/{name}"
    )
    assert "deleted" in await kubectl_output(kubectl, cluster, "delete", "pod", name, "--grace-period=1")
    assert cluster.objects("pods") == []


async def test_kubectl_runs_commands_in_pods(cluster: Cluster, pods: Boxes, kubectl: Kubectl) -> None:
    """Input, both outputs and the exit status are passed on."""
    if kubectl.minor < WEBSOCKETS:
        pytest.skip(f"kubectl 1.{kubectl.minor} runs commands over SPDY: the double uses WebSockets, as we do")
    name = f"sandherd-{(await pods.make()).name}"
    assert (await kubectl_output(kubectl, cluster, "exec", name, "--", "sh", "-c", "echo out; id -u")).split() == [
        "out",
        "1000",
    ]
    assert "exit code 7" in await kubectl_output(kubectl, cluster, "exec", name, "--", "sh", "-c", "exit 7", code=7)
    copied = ["exec", "-i", name, "--", "cat"]
    assert await kubectl_output(kubectl, cluster, *copied) == ""
