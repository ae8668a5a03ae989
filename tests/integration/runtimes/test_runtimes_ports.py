"""Ports of sandboxes by provider: tokens, limited ports, and late addresses.

`test_runtimes_contract.py` tests the requirements of all runtimes.
"""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from sandherd.settings import Settings
from sandherd.stack.nats import free_port
from spawner.runtimes.boxes.provider import Box, ProviderError, ProviderFault
from spawner.runtimes.commands import Address
from spawner.runtimes.daytona.provider import DaytonaProvider
from spawner.runtimes.kubernetes.factory import open_kubernetes
from spawner.runtimes.kubernetes.provider import PodProvider
from spawner.runtimes.remote.provider import RemoteProvider
from tests.doubles.daytona.double import Double as Daytona
from tests.doubles.daytona.provider import cloud
from tests.doubles.kubernetes.cluster import IMAGE, NAMESPACE, Cluster
from tests.doubles.kubernetes.provider import opened
from tests.doubles.remote.double import Double as RuntimeApi
from tests.doubles.remote.provider import remote
from tests.integration.runtimes.conftest import Boxes
from tests.polling import eventually

pytestmark = [pytest.mark.timeout(900)]


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


async def test_daytona_token_is_another_after_each_start(clouds: Boxes, daytona_double: Daytona) -> None:
    """After a restart the former token is invalid; a stopped sandbox has none. No text contains a token."""
    assert isinstance(clouds.provider, DaytonaProvider)
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
    requested = str(daytona_double.requested) + repr(first) + first.url + str(caught.value)
    assert not [token for token in daytona_double.tokens if token in requested]


async def _ports_in(boxes: Boxes, box: Box) -> list[int]:
    """The ports in the variables of a box's program; none before it has begun."""
    ran = await boxes.sh(
        box, "tr '\\0' '\\n' < /proc/$(cat /sandherd/run/pid)/environ | sed -n 's/^SANDHERD_PORTS=//p'"
    )
    return [int(port) for port in ran.out.decode().strip().split(",") if port]


async def test_declared_ports_of_a_runtime_are_reachable(runtimes: Boxes, remote_double: RuntimeApi) -> None:
    """The program gets the declared ports in each of its lives; any other port is refused, with the declared ones."""
    assert isinstance(runtimes.provider, RemoteProvider)
    box = await runtimes.make()
    ports = sorted(remote_double.of(box.name).machine.work_ports)
    assert await eventually(lambda: _ports_in(runtimes, box)) == ports
    with pytest.raises(ProviderError, match=f"exposes {ports[0]}, {ports[1]}") as caught:
        await runtimes.provider.address(box.name, 60_000)
    assert caught.value.fault is ProviderFault.REFUSED
    await runtimes.provider.stop(box.name, 1)
    await runtimes.provider.start(box.name)
    assert await eventually(lambda: _ports_in(runtimes, box)) == ports
    await _serve(runtimes, box, ports[1])
    address = await runtimes.provider.address(box.name, ports[1])
    assert await eventually(lambda: _answers(address))
    await remote_double.pause(remote_double.of(box.name))
    with pytest.raises(ProviderError, match="is paused") as caught:
        await runtimes.provider.address(box.name, ports[1])
    assert caught.value.fault is ProviderFault.TRANSIENT


async def test_runtime_api_without_ports_uses_the_defaults(runtimes: Boxes, remote_double: RuntimeApi) -> None:
    """Without ports in its configuration it uses 12000 and 12001, each at a host named after the runtime's."""
    assert isinstance(runtimes.provider, RemoteProvider)
    remote_double.publishes_hosts = False
    box = await runtimes.make()
    assert await eventually(lambda: _ports_in(runtimes, box)) == [12_000, 12_001]
    address = await runtimes.provider.address(box.name, 12_001)
    assert address.url.startswith("http://work-2-127.0.0.1:")


async def test_unreachable_pod_is_reported(
    kubernetes_cluster: Cluster,
) -> None:
    """A pod without ingress is refused, naming the setting; one without an address may be retried."""
    provider = await opened(kubernetes_cluster, ports=(8000,))()
    assert isinstance(provider, PodProvider)
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


@pytest.mark.parametrize("no_one", [False, True])
async def test_ingress_policy_permits_configured_ports_or_none(no_one: bool) -> None:
    """The policy that the cluster has accepted and the capabilities state the same ports."""
    ingress = frozenset({"nobody"} if no_one else ())
    with Cluster() as cluster:
        settings = Settings(sandbox_image=IMAGE, kubernetes_config=cluster.kubeconfig, kubernetes_ingress=ingress)
        runtime = await open_kubernetes(settings, "h1")
        await runtime.close()
        (policy,) = cluster.objects("networkpolicies")
    assert runtime.capabilities.ports is not no_one
    rules = policy["spec"]["ingress"]
    assert [[port["port"] for port in rule["ports"]] for rule in rules] == ([] if no_one else [[12_000, 12_001]])
    named = [rule["from"][0]["namespaceSelector"]["matchLabels"] for rule in rules]
    assert named == ([] if no_one else [{"kubernetes.io/metadata.name": NAMESPACE}])
