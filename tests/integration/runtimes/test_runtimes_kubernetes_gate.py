"""The gate of a pod on a slow or failing cluster: early, late and repeated requests change nothing."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from sandherd.contracts.specs import SandboxLimits
from spawner.runtimes.boxes.provider import Command, ProviderError, ProviderFault
from spawner.runtimes.kubernetes import execution
from tests.doubles.kubernetes.api import Fault
from tests.doubles.kubernetes.cluster import Cluster
from tests.doubles.kubernetes.store import ApiError
from tests.integration.runtimes.clusters import PODS, breaks, left, made, pod_of
from tests.integration.runtimes.conftest import WORK, Boxes
from tests.patience import PATIENCE

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
FAIR = 'trap "exit 5" TERM; while :; do sleep 0.05; done'


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster of one test: its delays affect no other test."""
    with Cluster() as one:
        yield one


@pytest.fixture
async def pods(cluster: Cluster) -> AsyncIterator[Boxes]:
    async with made(cluster) as boxes:
        yield boxes


async def test_pod_gets_its_files_before_its_first_process(cluster: Cluster, pods: Boxes) -> None:
    """The pod gets its files first, even if the cluster reports it as running before its gate is ready."""
    cluster.now(lambda: setattr(cluster.kubelet, "lag", 1.0))
    box = await pods.make(f"echo life >> {WORK}/lives; exec sleep 100")
    assert (await pods.sh(box, "pwd")).out == f"{WORK}\n".encode()
    result = await pods.sh(box, "until [ -s lives ]; do sleep 0.05; done; cat lives; ls ../.box")
    assert result.out.split() == [b"life", b"go", b"life", b"pid.1"]
    assert (box.alive, box.runs) == (True, 1)


async def test_restarted_program_is_terminated_by_its_own_pid(cluster: Cluster, pods: Boxes) -> None:
    """The former program's pid is not used, however late the gate is."""
    box = await pods.make(FAIR)
    cluster.now(lambda: setattr(cluster.kubelet, "lag", 1.0))
    await pods.provider.stop(box.name, 20)
    await pods.provider.start(box.name)
    await pods.provider.stop(box.name, 20)
    ended = await pods.provider.get(box.name)
    assert ended is not None
    assert ended.end is not None
    assert ended.end.code in {5, 143}, "it was killed after its grace"  # 143 before it has set a handler of SIGTERM
    assert ended.runs == 2


async def test_pod_restarted_before_its_program_starts_it_then(cluster: Cluster, pods: Boxes) -> None:
    """A pod whose node was restarted has not ended, and its program is started once."""
    breaks(cluster, Fault("GET", "/exec", ApiError(503, "ServiceUnavailable", "apiserver not ready"), times=1))
    spec = pods.spec(f"echo life >> {WORK}/lives; exec sleep 100")
    with pytest.raises(ProviderError):
        await pods.provider.create(spec)
    cluster.now(cluster.kubelet.containers[pod_of(cluster, spec.name)["metadata"]["uid"]].kill)
    async with asyncio.timeout(PATIENCE):
        while not restarts(cluster, spec.name):
            await asyncio.sleep(0.02)  # another thread sends no notification
    box = await pods.provider.create(spec)
    assert box.alive
    assert (await pods.sh(box, "until [ -s lives ]; do sleep 0.05; done; cat lives")).out == b"life\n"


def restarts(cluster: Cluster, name: str) -> bool:
    (status,) = pod_of(cluster, name)["status"]["containerStatuses"]
    return status["restartCount"] == 1 and "running" in status["state"]


async def test_unresponsive_node_is_not_waited_for_for_ever(
    cluster: Cluster, pods: Boxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait is limited, whether the server replies to pings in the node's place or not."""
    box = await pods.make()
    monkeypatch.setattr(execution, "_MARGIN", 0.5)
    cluster.now(lambda: setattr(cluster.api, "silent", True))
    try:
        with pytest.raises(ProviderError) as caught:
            await pods.provider.run(box.name, Command(argv=["true"], seconds=0.5))
        assert caught.value.fault is ProviderFault.TIMED_OUT
        monkeypatch.setattr("spawner.runtimes.kubernetes.cluster._PING_SECONDS", 0.2)
        async with made(cluster) as others:
            with pytest.raises(ProviderError, match="connection to a command in") as caught:
                await others.provider.run(box.name, Command(argv=["true"], seconds=100))
        assert caught.value.fault is ProviderFault.TRANSIENT
    finally:
        cluster.now(lambda: setattr(cluster.api, "silent", False))


async def test_program_has_the_configured_limits(pods: Boxes) -> None:
    """Each process has the limits; the memory limit is the pod's."""
    limits = SandboxLimits(memory_mb=128, cpu_seconds=77, open_files=333)
    box = await pods.make(f"(ulimit -t; ulimit -n) > {WORK}/limits; exec sleep 100", limits=limits)
    result = await pods.sh(box, "until [ $(wc -l < limits) = 2 ]; do sleep 0.05; done; cat limits")
    assert result.out.split() == [b"77", b"333"]


@pytest.mark.parametrize("step", [("POST", PODS), ("PATCH", PODS), ("DELETE", PODS)])
async def test_conflict_is_retried(cluster: Cluster, pods: Boxes, step: tuple[str, str]) -> None:
    """A concurrent change of the object is retried, and fails neither the spawner nor the sandbox."""
    message = "Operation cannot be fulfilled on pods: the object has been modified; please apply your changes again"
    breaks(cluster, Fault(*step, ApiError(409, "Conflict", message), times=1))
    box = await pods.make()
    assert (box.alive, box.runs) == (True, 1)
    await pods.provider.mark_quarantined(box.name)
    await pods.provider.remove(box.name)
    assert left(cluster) == []
