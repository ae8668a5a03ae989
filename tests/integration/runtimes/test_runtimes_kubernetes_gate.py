"""The gate of a pod at a cluster that is slow, or gone: what comes too early, too late, or twice changes nothing."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from sandherd.contracts.specs import Limits
from spawner.runtimes.boxes.provider import Command, ProviderError, ProviderFault
from spawner.runtimes.kubernetes import executing
from tests.doubles.kubernetes.api import Fault
from tests.doubles.kubernetes.cluster import Cluster
from tests.doubles.kubernetes.store import ApiError
from tests.integration.runtimes.clusters import PODS, breaks, left, made, pod_of
from tests.integration.runtimes.conftest import WORK, Boxes
from tests.patience import PATIENCE

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]
FAIR = 'trap "exit 5" TERM; while :; do sleep 0.05; done'


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster of the test's own: what is slow there is slow for nobody else."""
    with Cluster() as one:
        yield one


@pytest.fixture
async def pods(cluster: Cluster) -> AsyncIterator[Boxes]:
    async with made(cluster) as boxes:
        yield boxes


async def test_a_pod_is_furnished_before_its_first_process_has_done_anything(cluster: Cluster, pods: Boxes) -> None:
    """A cluster says that it runs as soon as it was started; with little time for it the gate comes after us."""
    cluster.now(lambda: setattr(cluster.kubelet, "lag", 1.0))
    box = await pods.make(f"echo life >> {WORK}/lives; exec sleep 100")
    assert (await pods.sh(box, "pwd")).out == f"{WORK}\n".encode()
    said = await pods.sh(box, "until [ -s lives ]; do sleep 0.05; done; cat lives; ls ../.box")
    assert said.out.split() == [b"life", b"go", b"life", b"pid.1"]
    assert (box.alive, box.runs) == (True, 1)


async def test_a_program_is_stopped_in_order_that_is_only_just_started_again(cluster: Cluster, pods: Boxes) -> None:
    """The number of the one before is not taken for its own, however late its gate is."""
    box = await pods.make(FAIR)
    cluster.now(lambda: setattr(cluster.kubelet, "lag", 1.0))
    await pods.provider.stop(box.name, 20)
    await pods.provider.start(box.name)
    await pods.provider.stop(box.name, 20)
    ended = await pods.provider.get(box.name)
    assert ended is not None
    assert ended.end is not None
    assert ended.end.code in {5, 143}, "it was killed after its grace"  # 143 before it has said what to do at SIGTERM
    assert ended.runs == 2


async def test_a_pod_that_is_restarted_before_anything_was_begun_in_it_is_begun_then(
    cluster: Cluster, pods: Boxes
) -> None:
    """As where its node starts again: it is not said to have ended, and its program is started once."""
    breaks(cluster, Fault("GET", "/exec", ApiError(503, "ServiceUnavailable", "apiserver not ready"), times=1))
    spec = pods.spec(f"echo life >> {WORK}/lives; exec sleep 100")
    with pytest.raises(ProviderError):
        await pods.provider.create(spec)
    cluster.now(cluster.kubelet.containers[pod_of(cluster, spec.name)["metadata"]["uid"]].kill)
    async with asyncio.timeout(PATIENCE):
        while not restarts(cluster, spec.name):
            await asyncio.sleep(0.02)  # another thread: nothing here is told of it
    box = await pods.provider.create(spec)
    assert box.alive
    assert (await pods.sh(box, "until [ -s lives ]; do sleep 0.05; done; cat lives")).out == b"life\n"


def restarts(cluster: Cluster, name: str) -> bool:
    (status,) = pod_of(cluster, name)["status"]["containerStatuses"]
    return status["restartCount"] == 1 and "running" in status["state"]


async def test_a_node_that_does_not_answer_a_command_is_not_waited_for_for_ever(
    cluster: Cluster, pods: Boxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the server answers its pings in its place or not."""
    box = await pods.make()
    monkeypatch.setattr(executing, "_MARGIN", 0.5)
    cluster.now(lambda: setattr(cluster.api, "silent", True))
    try:
        with pytest.raises(ProviderError) as caught:
            await pods.provider.run(box.name, Command(argv=["true"], seconds=0.5))
        assert caught.value.fault is ProviderFault.TIMED_OUT
        monkeypatch.setattr("spawner.runtimes.kubernetes.cluster._PING", 0.2)
        async with made(cluster) as others:
            with pytest.raises(ProviderError, match="cut off") as caught:
                await others.provider.run(box.name, Command(argv=["true"], seconds=100))
        assert caught.value.fault is ProviderFault.TRANSIENT
    finally:
        cluster.now(lambda: setattr(cluster.api, "silent", False))


async def test_a_program_has_the_limits_that_were_asked_for(pods: Boxes) -> None:
    """Those of each of its processes; its memory is its pod's."""
    limits = Limits(memory_mb=128, cpu_seconds=77, open_files=333)
    box = await pods.make(f"(ulimit -t; ulimit -n) > {WORK}/limits; exec sleep 100", limits=limits)
    said = await pods.sh(box, "until [ $(wc -l < limits) = 2 ]; do sleep 0.05; done; cat limits")
    assert said.out.split() == [b"77", b"333"]


@pytest.mark.parametrize("step", [("POST", PODS), ("PATCH", PODS), ("DELETE", PODS)])
async def test_a_conflict_is_asked_again(cluster: Cluster, pods: Boxes, step: tuple[str, str]) -> None:
    """Somebody else has changed the object at the same moment: that is no fault of ours, and none of the box."""
    told = "Operation cannot be fulfilled on pods: the object has been modified; please apply your changes again"
    breaks(cluster, Fault(*step, ApiError(409, "Conflict", told), times=1))
    box = await pods.make()
    assert (box.alive, box.runs) == (True, 1)
    await pods.provider.set_aside(box.name)
    await pods.provider.remove(box.name)
    assert left(cluster) == []
