"""Calls to a cluster's API, with plain JSON bodies, through the client that holds the credential."""

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
_ANY: Final = dict.fromkeys((200, 201, 202), "object")
_CALL: Final = 30.0
WATCH: Final = 1200
"""The requested duration of one watch in seconds; the next one continues from where it ended."""
_SILENCE: Final = 90.0
"""A watch without a message for these seconds counts as broken: a server sends a bookmark about every minute."""
OPENED: Final = "OPENED"
"""The type of the first event of `Cluster.watch`, which is our own: the server has accepted the watch."""
STALE: Final = _CALL + _SILENCE
"""The longest time in seconds until a watch of an unavailable server fails."""
_PROTOCOLS: Final = "v5.channel.k8s.io, v4.channel.k8s.io"
_PATCH: Final = "application/merge-patch+json"
_PING: Final = 20.0
"""The interval of WebSocket pings in seconds, as a command may produce no output for long."""


class Cluster:
    """One cluster, and our namespace in it. Raises the client's errors."""

    def __init__(self, configuration: Configuration, namespace: str) -> None:
        self.namespace = namespace
        self._api = ApiClient(configuration)
        self._streams = WsApiClient(configuration, heartbeat=_PING)

    async def get(self, path: str, **query: str) -> Json:
        """Get an object or a list of objects."""
        return await self._call("GET", path, query)

    async def make(self, path: str, body: Json) -> Json:
        """Create an object."""
        return await self._call("POST", path, {}, body)

    async def change(self, path: str, body: Json) -> Json:
        """Change some fields of an object (JSON merge patch)."""
        return await self._call("PATCH", path, {}, body, _PATCH)

    async def delete(self, path: str, grace: int | None = None) -> Json:
        """Delete an object and its dependents. `grace`: the grace period in seconds."""
        body: Json = {"propagationPolicy": "Background"}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        return await self._call("DELETE", path, {}, body)

    async def watch(self, path: str, version: str, **query: str) -> AsyncGenerator[Json, None]:
        """Watch events from that resource version on, until the server ends the watch. Raises `ApiException`."""
        parameters = {**query, "watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        limit = aiohttp.ClientTimeout(connect=_CALL, sock_read=_SILENCE)
        answer = await self._call_api(
            "GET", path, {**parameters, "timeoutSeconds": str(WATCH)}, _preload_content=False, _request_timeout=limit
        )
        async with answer:
            if answer.status == VERSION_EXPIRED:
                yield {"type": "ERROR", "object": {"code": VERSION_EXPIRED}}
                return
            if answer.status != 200:
                raise await _api_error(answer)
            yield {"type": OPENED, "object": {}}
            while line := await answer.content.readline():
                yield json.loads(line)

    async def log(self, pod: str, **query: str) -> AsyncGenerator[bytes, None]:
        """The log of a pod's container, in pieces. Raises `ApiException`."""
        path = f"{PODS.format(self.namespace)}/{pod}/log"
        limit = aiohttp.ClientTimeout(connect=_CALL)
        query = {**query, "container": CONTAINER}
        answer = await self._call_api("GET", path, query, _preload_content=False, _request_timeout=limit)
        async with answer:
            if answer.status != 200:
                raise await _api_error(answer)
            async for piece in answer.content.iter_any():
                yield piece

    async def execute(
        self, pod: str, command: Sequence[str]
    ) -> AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]:
        """Start a command in a pod; its streams are channels of the returned WebSocket."""
        query = [("container", CONTAINER), *((name, "true") for name in ("stdin", "stdout", "stderr"))]
        opened: AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse] = await self._streams.call_api(
            f"{PODS.format(self.namespace)}/{pod}/exec",
            "GET",
            query_params=[("command", list(command)), *query],
            header_params={"sec-websocket-protocol": _PROTOCOLS},
            auth_settings=["BearerToken"],
            _preload_content=False,
        )
        return opened

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()
        await self._streams.close()

    async def _call(
        self, method: str, path: str, query: Mapping[str, str], body: Json | None = None, kind: str = "application/json"
    ) -> Json:
        found: Any = await self._call_api(
            method,
            path,
            query,
            body=body,
            kind=kind,
            response_types_map=_ANY,
            _return_http_data_only=True,
            _request_timeout=_CALL,
        )
        if not isinstance(found, dict):  # such as the error page of a proxy: the client accepts any text as a reply
            raise TypeError("no object")
        return found

    async def _call_api(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        body: Json | None = None,
        kind: str = "application/json",
        **more: Any,
    ) -> Any:
        return await self._api.call_api(
            path,
            method,
            query_params=list(query.items()),
            header_params={"Accept": "application/json", "Content-Type": kind},
            body=body,
            auth_settings=["BearerToken"],
            **more,
        )


async def _api_error(answer: aiohttp.ClientResponse) -> ApiException:
    error = ApiException(status=answer.status, reason=answer.reason)
    error.body, error.headers = await answer.read(), answer.headers
    return error
