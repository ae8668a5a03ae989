"""What is each vendor's own about the ports of a box: tokens, the few that there is a way to, addresses that come late.

What holds for all of them is asked in `test_runtimes_same.py`.
"""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from sandherd.settings import Settings
from sandherd_worker.serving.asking import free_port
from spawner.runtimes.addresses import Address
from spawner.runtimes.boxes.provider import Box, ProviderError, ProviderFault
from spawner.runtimes.daytona.cloud import Cloud
from spawner.runtimes.kubernetes.opening import open_kubernetes
from spawner.runtimes.kubernetes.provider import Pods
from spawner.runtimes.remote.provider import Remote
from tests.doubles.daytona.double import Double as Daytona
from tests.doubles.daytona.opening import cloud
from tests.doubles.kubernetes.cluster import IMAGE, NAMESPACE, Cluster
from tests.doubles.kubernetes.opening import opened
from tests.doubles.remote.double import Double as RuntimeApi
from tests.doubles.remote.opening import remote
from tests.integration.runtimes.conftest import Boxes
from tests.integration.spawner.conftest import eventually

pytestmark = [pytest.mark.timeout(300)]


@pytest.fixture
async def clouds(daytona_double: Daytona) -> AsyncIterator[Boxes]:
    boxes = Boxes(cloud(daytona_double))
    yield boxes
    await boxes.close()


@pytest.fixture
async def runtimes(remote_double: RuntimeApi) -> AsyncIterator[Boxes]:
    boxes = Boxes(remote(remote_double))
    yield boxes
    await boxes.close()


async def _answers(address: Address) -> bool:
    try:
        async with aiohttp.ClientSession(headers=address.headers) as http, http.get(f"{address.url}/") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


async def _serve(boxes: Boxes, box: Box, port: int) -> None:
    await boxes.sh(box, f"setsid python3 -m http.server {port} --bind 0.0.0.0 >/dev/null 2>&1 &")


async def test_what_daytona_wants_to_be_shown_is_another_one_after_each_start(
    clouds: Boxes, daytona_double: Daytona
) -> None:
    """The one from before opens nothing any more; a sandbox that is stopped has none. No text says any of them."""
    assert isinstance(clouds.provider, Cloud)
    box, port = await clouds.make(), free_port()
    await _serve(clouds, box, port)
    first = await clouds.provider.address(box.name, port)
    assert await eventually(lambda: _answers(first))
    await clouds.provider.stop(box.name, 1)
    with pytest.raises(ProviderError, match="it is stopped") as caught:
        await clouds.provider.address(box.name, port)
    assert caught.value.fault is ProviderFault.REFUSED
    await clouds.provider.start(box.name)
    await _serve(clouds, box, port)
    second = await clouds.provider.address(box.name, port)
    assert await eventually(lambda: _answers(second))
    assert not await _answers(first)
    assert {*first.headers.values(), *second.headers.values()} == daytona_double.tokens
    asked = str(daytona_double.asked) + repr(first) + first.url + str(caught.value)
    assert not [token for token in daytona_double.tokens if token in asked]


async def _told(boxes: Boxes, box: Box) -> list[int]:
    """The ports that the program of a box was told of; none while it has not begun."""
    ran = await boxes.sh(
        box, "tr '\\0' '\\n' < /proc/$(cat /sandherd/run/pid)/environ | sed -n 's/^SANDHERD_PORTS=//p'"
    )
    return [int(port) for port in ran.out.decode().strip().split(",") if port]


async def test_of_a_runtime_those_ports_are_reached_that_are_told(runtimes: Boxes, remote_double: RuntimeApi) -> None:
    """Its program is told of them, in each of its lives; any other is refused, with those that there are."""
    assert isinstance(runtimes.provider, Remote)
    box = await runtimes.make()
    ports = sorted(remote_double.of(box.name).machine.work_ports)
    assert await eventually(lambda: _told(runtimes, box)) == ports
    with pytest.raises(ProviderError, match=f"lets in to {ports[0]}, {ports[1]}") as caught:
        await runtimes.provider.address(box.name, 60_000)
    assert caught.value.fault is ProviderFault.REFUSED
    await runtimes.provider.stop(box.name, 1)
    await runtimes.provider.start(box.name)
    assert await eventually(lambda: _told(runtimes, box)) == ports
    await _serve(runtimes, box, ports[1])
    address = await runtimes.provider.address(box.name, ports[1])
    assert await eventually(lambda: _answers(address))
    await remote_double.pause(remote_double.of(box.name))
    with pytest.raises(ProviderError, match="is paused") as caught:
        await runtimes.provider.address(box.name, ports[1])
    assert caught.value.fault is ProviderFault.TRANSIENT


async def test_a_runtime_api_that_says_nothing_of_ports_has_those_that_openhands_counts_on(
    runtimes: Boxes, remote_double: RuntimeApi
) -> None:
    """12000 and 12001, each at a host that is named after the runtime's."""
    assert isinstance(runtimes.provider, Remote)
    remote_double.tells_hosts = False
    box = await runtimes.make()
    assert await eventually(lambda: _told(runtimes, box)) == [12_000, 12_001]
    address = await runtimes.provider.address(box.name, 12_001)
    assert address.url.startswith("http://work-2-127.0.0.1:")


async def test_a_pod_that_nobody_is_let_in_to_or_that_has_no_address_yet_is_said(
    kubernetes_cluster: Cluster,
) -> None:
    """The one is refused, with the setting that would change it; the other may be asked again."""
    provider = await opened(kubernetes_cluster, ports=(8000,))()
    assert isinstance(provider, Pods)
    boxes = Boxes(provider)
    try:
        box = await boxes.make()
        host = (await provider.address(box.name, 8000)).url
        assert host.startswith("http://127.88.")
        with pytest.raises(ProviderError, match="SANDHERD_KUBERNETES_PORTS") as caught:
            await provider.address(box.name, 9000)
        assert caught.value.fault is ProviderFault.REFUSED
        none = {"status": {"podIP": None, "podIPs": None}}
        kubernetes_cluster.now(lambda: kubernetes_cluster.store.patch("pods", NAMESPACE, f"sandherd-{box.name}", none))
        with pytest.raises(ProviderError, match="has no address yet") as caught:
            await provider.address(box.name, 8000)
        assert caught.value.fault is ProviderFault.TRANSIENT
    finally:
        await boxes.close()


@pytest.mark.parametrize("nobody", [False, True])
async def test_opening_lets_in_who_is_beside_the_spawner_to_two_ports_or_nobody(nobody: bool) -> None:
    """The policy that the cluster has taken says so, and so do the capabilities."""
    ingress = frozenset({"nobody"} if nobody else ())
    with Cluster() as cluster:
        settings = Settings(sandbox_image=IMAGE, kubernetes_config=cluster.kubeconfig, kubernetes_ingress=ingress)
        runtime = await open_kubernetes(settings, "h1")
        await runtime.close()
        (policy,) = cluster.objects("networkpolicies")
    assert runtime.capabilities.ports is not nobody
    rules = policy["spec"]["ingress"]
    assert [[port["port"] for port in rule["ports"]] for rule in rules] == ([] if nobody else [[12_000, 12_001]])
    named = [rule["from"][0]["namespaceSelector"]["matchLabels"] for rule in rules]
    assert named == ([] if nobody else [{"kubernetes.io/metadata.name": NAMESPACE}])
