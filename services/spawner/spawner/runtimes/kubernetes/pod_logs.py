"""The log of a pod, as its cluster stores it."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from kubernetes_asyncio.client.exceptions import ApiException

from spawner.runtimes.boxes.provider import ProviderError, ProviderFault
from spawner.runtimes.kubernetes import states
from spawner.runtimes.kubernetes.faults import faults
from spawner.runtimes.kubernetes.manifests import pod_name
from spawner.runtimes.kubernetes.objects import BoxObjects
from spawner.runtimes.runtime_logs import LogQuery

_LOG_DELETED = frozenset({400, 404})
"""The statuses of a request for a log that the pod's node has deleted."""


async def read(objects: BoxObjects, name: str, query: LogQuery) -> AsyncGenerator[bytes, None]:
    """The log of a pod's first process before its last restart, then its log since then. Raises `ProviderError`."""
    pod = await objects.pod(name)
    if pod is None:
        raise ProviderError(ProviderFault.NOT_FOUND, f"kubernetes: box {name} does not exist")
    previous_values = ["true", "false"] if states.container(pod).get("restartCount") else ["false"]
    for previous in previous_values:
        follow = "true" if query.follow and previous == "false" else "false"
        parameters = {"previous": previous, "follow": follow}
        if query.lines is not None:
            parameters["tailLines"] = str(query.lines)
        with faults(f"reading the log of {name}"):
            async with aclosing(_pieces(objects, name, parameters)) as pieces:
                async for piece in pieces:
                    yield piece


async def _pieces(objects: BoxObjects, name: str, parameters: dict[str, str]) -> AsyncGenerator[bytes, None]:
    async with aclosing(objects.cluster.log(pod_name(name), **parameters)) as pieces:
        try:
            async for piece in pieces:
                yield piece
        except ApiException as error:
            if parameters["previous"] == "false" or error.status not in _LOG_DELETED:
                raise
