"""The adapter at a cluster of the tests' own."""

from collections.abc import Awaitable, Callable

from spawner.runtimes.boxes.provider import Provider
from spawner.runtimes.kubernetes.cluster import Cluster as Client
from spawner.runtimes.kubernetes.manifests import PodOptions
from spawner.runtimes.kubernetes.provider import PodProvider
from tests.doubles.kubernetes.cluster import IMAGE, NAMESPACE, Cluster


def opened(cluster: Cluster, version: str | None = None, **kind: object) -> Callable[[], Awaitable[Provider]]:
    """What opens the provider at that cluster, as often as it is asked to."""

    async def one() -> Provider:
        made = PodOptions(**{"image": IMAGE, "storage_mb": 512, **kind})  # type: ignore[arg-type]  # as the test says
        return PodProvider(Client(cluster.configuration(), NAMESPACE), made, version)

    return one
