"""The log of a pod, as its cluster stores it."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from kubernetes_asyncio.client.exceptions import ApiException

from spawner.runtimes.boxes.provider import ProviderError, ProviderFault
from spawner.runtimes.kubernetes import states
from spawner.runtimes.kubernetes.faults import faults
from spawner.runtimes.kubernetes.manifests import named
from spawner.runtimes.kubernetes.objects import BoxObjects
from spawner.runtimes.runtime_logs import LogQuery

_DELETED = frozenset({400, 404})
"""The statuses for a log that its node has deleted."""


async def read(objects: BoxObjects, name: str, query: LogQuery) -> AsyncGenerator[bytes, None]:
    """The log of the first process before its last restart, then its log since then. Raises `ProviderError`."""
    pod = await objects.pod(name)
    if pod is None:
        raise ProviderError(ProviderFault.NOT_FOUND, f"kubernetes: box {name} does not exist")
    parts = ["true", "false"] if states.container(pod).get("restartCount") else ["false"]
    for previous in parts:
        follow = "true" if query.follow and previous == "false" else "false"
        wanted = {"previous": previous, "follow": follow}
        if query.lines is not None:
            wanted["tailLines"] = str(query.lines)
        with faults(f"reading the log of {name}"):
            async with aclosing(_pieces(objects, name, wanted)) as pieces:
                async for piece in pieces:
                    yield piece


async def _pieces(objects: BoxObjects, name: str, wanted: dict[str, str]) -> AsyncGenerator[bytes, None]:
    async with aclosing(objects.cluster.log(named(name), **wanted)) as pieces:
        try:
            async for piece in pieces:
                yield piece
        except ApiException as error:
            if wanted["previous"] == "false" or error.status not in _DELETED:
                raise
