"""Calls of a cluster's API with plain JSON bodies, through the Kubernetes client, which adds the credential."""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import aiohttp
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.client.exceptions import ApiException
from kubernetes_asyncio.stream import WsApiClient

from spawner.runtimes.kubernetes.faults import VERSION_EXPIRED
from spawner.runtimes.kubernetes.manifests import CONTAINER, Json

PODS: Final = "/api/v1/namespaces/{}/pods"
POLICIES: Final = "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies"
_RESPONSE_TYPES: Final = dict.fromkeys((200, 201, 202), "object")
_CALL_SECONDS: Final = 30.0
"""The timeout of a request, and of connecting to the server."""
WATCH: Final = 1200
"""The requested duration of a watch in seconds. The next watch continues where it ended."""
_WATCH_SILENCE_SECONDS: Final = 90.0
"""A watch without a message for this time counts as broken, because servers send a bookmark about every minute."""
OPENED: Final = "OPENED"
"""The type of an event that `Cluster.watch` itself yields first, when the server has accepted the watch."""
STALE: Final = _CALL_SECONDS + _WATCH_SILENCE_SECONDS
"""The maximum time in seconds until a watch of an unavailable server fails."""
_PROTOCOLS: Final = "v5.channel.k8s.io, v4.channel.k8s.io"
_PATCH: Final = "application/merge-patch+json"
_PING_SECONDS: Final = 20.0
"""The interval of WebSocket pings. They are needed because a command may produce no output for a long time."""


class Cluster:
    """The API of a cluster, for one namespace. Methods raise the client's errors."""

    def __init__(self, configuration: Configuration, namespace: str) -> None:
        self.namespace = namespace
        self._api = ApiClient(configuration)
        self._streams = WsApiClient(configuration, heartbeat=_PING_SECONDS)

    async def get(self, path: str, **query: str) -> Json:
        """Get an object or a list of objects."""
        return await self._call("GET", path, query)

    async def make(self, path: str, body: Json) -> Json:
        """Create an object."""
        return await self._call("POST", path, {}, body)

    async def change(self, path: str, body: Json) -> Json:
        """Change fields of an object by a JSON merge patch."""
        return await self._call("PATCH", path, {}, body, _PATCH)

    async def delete(self, path: str, grace: int | None = None) -> Json:
        """Delete an object and its dependents. `grace`: the grace period in seconds."""
        body: Json = {"propagationPolicy": "Background"}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        return await self._call("DELETE", path, {}, body)

    async def watch(self, path: str, version: str, **query: str) -> AsyncGenerator[Json, None]:
        """Yield watch events after a resource version, until the server ends the watch. Raises `ApiException`."""
        parameters = {**query, "watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        timeout = aiohttp.ClientTimeout(connect=_CALL_SECONDS, sock_read=_WATCH_SILENCE_SECONDS)
        response = await self._call_api(
            "GET", path, {**parameters, "timeoutSeconds": str(WATCH)}, _preload_content=False, _request_timeout=timeout
        )
        async with response:
            if response.status == VERSION_EXPIRED:
                yield {"type": "ERROR", "object": {"code": VERSION_EXPIRED}}
                return
            if response.status != 200:
                raise await _api_error(response)
            yield {"type": OPENED, "object": {}}
            while line := await response.content.readline():
                yield json.loads(line)

    async def log(self, pod: str, **query: str) -> AsyncGenerator[bytes, None]:
        """The log of a pod's container, in pieces. Raises `ApiException`."""
        path = f"{PODS.format(self.namespace)}/{pod}/log"
        timeout = aiohttp.ClientTimeout(connect=_CALL_SECONDS)
        query = {**query, "container": CONTAINER}
        response = await self._call_api("GET", path, query, _preload_content=False, _request_timeout=timeout)
        async with response:
            if response.status != 200:
                raise await _api_error(response)
            async for piece in response.content.iter_any():
                yield piece

    async def execute(
        self, pod: str, command: Sequence[str]
    ) -> AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]:
        """Start a command in a pod; its streams are channels of the returned WebSocket."""
        query = [("container", CONTAINER), *((name, "true") for name in ("stdin", "stdout", "stderr"))]
        connection: AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse] = await self._streams.call_api(
            f"{PODS.format(self.namespace)}/{pod}/exec",
            "GET",
            query_params=[("command", list(command)), *query],
            header_params={"sec-websocket-protocol": _PROTOCOLS},
            auth_settings=["BearerToken"],
            _preload_content=False,
        )
        return connection

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()
        await self._streams.close()

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> Json:
        reply: Any = await self._call_api(
            method,
            path,
            query,
            body=body,
            content_type=content_type,
            response_types_map=_RESPONSE_TYPES,
            _return_http_data_only=True,
            _request_timeout=_CALL_SECONDS,
        )
        if not isinstance(reply, dict):  # the client accepts any text as a reply, such as the error page of a proxy
            raise TypeError("no object")
        return reply

    async def _call_api(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        body: Json | None = None,
        content_type: str = "application/json",
        **arguments: Any,
    ) -> Any:
        return await self._api.call_api(
            path,
            method,
            query_params=list(query.items()),
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
            **arguments,
        )


async def _api_error(response: aiohttp.ClientResponse) -> ApiException:
    error = ApiException(status=response.status, reason=response.reason)
    error.body, error.headers = await response.read(), response.headers
    return error
