"""Opens the Kubernetes adapter at a cluster for tests."""

from collections.abc import Awaitable, Callable

from spawner.runtimes.boxes.provider import Provider
from spawner.runtimes.kubernetes.cluster import Cluster as Client
from spawner.runtimes.kubernetes.manifests import PodOptions
from spawner.runtimes.kubernetes.provider import PodProvider
from tests.doubles.kubernetes.cluster import IMAGE, NAMESPACE, Cluster


def opened(cluster: Cluster, version: str | None = None, **kind: object) -> Callable[[], Awaitable[Provider]]:
    """A function that opens the provider at that cluster; a test may call it several times."""

    async def one() -> Provider:
        made = PodOptions(**{"image": IMAGE, "storage_mb": 512, **kind})  # type: ignore[arg-type]  # as the test says
        return PodProvider(Client(cluster.configuration(), NAMESPACE), made, version)

    return one
