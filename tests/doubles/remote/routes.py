"""The double's routes: those of the Runtime API, and those to each agent server."""

from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web

from tests.doubles.http_forwarder import forward_request
from tests.doubles.remote.double import KEY, ApiError, Double, Fault, Pod

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_OPEN = ("/sandbox/", "/ports/")
"""Paths that are not of the Runtime API: they require no account key, and must not be sent one."""


def application(double: Double) -> web.Application:
    """The double as an application of aiohttp."""
    routes = _Routes(double)
    app = web.Application(middlewares=[_failing(double)], client_max_size=1 << 30)
    app.router.add_post("/start", routes.start)
    for name in ("stop", "pause", "resume"):
        app.router.add_post(f"/{name}", routes.change)
    app.router.add_get("/list", routes.list)
    app.router.add_get("/sessions/batch", routes.batch)
    app.router.add_get("/sessions/{session}", routes.session)
    app.router.add_get("/runtime/{runtime}", routes.runtime)
    app.router.add_get("/registry_prefix", routes.registry_prefix)
    app.router.add_get("/image_exists", routes.image_exists)
    app.router.add_route("*", "/sandbox/{runtime}/{path:.*}", routes.inside)
    app.router.add_route("*", "/ports/{runtime}/{port}/{path:.*}", routes.work)
    return app


def _failing(double: Double) -> Any:
    @web.middleware
    async def middleware(
        request: web.Request, handler: "Callable[[web.Request], Awaitable[web.StreamResponse]]"
    ) -> web.StreamResponse:
        double.requested.append((request.method, request.path))
        fault = next((fault for fault in double.faults if fault.hits(request)), None)
        try:
            _check(request, fault)
            answer = await handler(request)
        except ApiError as error:
            return web.json_response(error.body, status=error.status, headers=error.headers)
        if fault and fault.lost:
            assert request.transport is not None
            request.transport.abort()
        return answer

    return middleware


def _check(request: web.Request, fault: Fault | None) -> None:
    if fault and fault.error:
        raise fault.error
    if not request.path.startswith(_OPEN) and request.headers.get("X-API-Key") != KEY:
        raise ApiError(401, "unauthorized", "Invalid or missing API key")


class _Routes:
    def __init__(self, double: Double) -> None:
        self._double = double

    async def start(self, request: web.Request) -> web.Response:
        """POST /start."""
        requested = await request.json()
        for name in ("image", "session_id", "command"):
            if not requested.get(name):
                raise ApiError(400, "invalid_request", f"{name} is required")
        if requested.get("resource_factor", 1) not in {1, 2, 4, 8}:
            raise ApiError(400, "invalid_request", "resource_factor must be 1, 2, 4, or 8")
        return web.json_response(self._shown(await self._double.start(requested)))

    async def change(self, request: web.Request) -> web.Response:
        """POST /stop, /pause, /resume."""
        pod = self._double.pods.get((await request.json()).get("runtime_id"))
        if pod is None or pod.status == "stopped":
            raise ApiError(404, "runtime_not_found", "Runtime not found")
        await getattr(self._double, request.path[1:])(pod)
        return web.json_response(self._shown(pod))

    async def list(self, _request: web.Request) -> web.Response:
        """GET /list: all runtimes that were not stopped."""
        found = [self._shown(pod) for pod in self._double.pods.values() if pod.status != "stopped"]
        return web.json_response({"runtimes": found})

    async def batch(self, request: web.Request) -> web.Response:
        """GET /sessions/batch."""
        wanted = set(request.query.getall("ids", []))
        found = [self._shown(pod) for pod in self._double.pods.values() if pod.requested["session_id"] in wanted]
        return web.json_response(found)

    async def session(self, request: web.Request) -> web.Response:
        """GET /sessions/{session_id}."""
        wanted = request.match_info["session"]
        pods = [pod for pod in self._double.pods.values() if pod.requested["session_id"] == wanted]
        if not pods:
            raise ApiError(404, "session_not_found", "Session not found")
        return web.json_response(self._shown(pods[-1]))

    async def runtime(self, request: web.Request) -> web.Response:
        """GET /runtime/{runtime_id}."""
        pod = self._double.pods.get(request.match_info["runtime"])
        if pod is None:
            raise ApiError(404, "runtime_not_found", "Runtime not found")
        return web.json_response(self._shown(pod))

    async def registry_prefix(self, _request: web.Request) -> web.Response:
        """GET /registry_prefix."""
        return web.json_response({"registry_prefix": "ghcr.io/openhands"})

    async def image_exists(self, request: web.Request) -> web.Response:
        """GET /image_exists."""
        return web.json_response({"exists": request.query["image"] in self._double.images})

    async def inside(self, request: web.Request) -> web.StreamResponse:
        """Forward any request to the agent server of a runtime, as an ingress does."""
        pod = self._double.pods.get(request.match_info["runtime"])
        if pod is None or not pod.machine.runs:
            raise ApiError(404 if pod is None else 503, "unavailable", "no server is available to handle this request")
        try:
            return await forward_request(request, f"{pod.machine.url}/{request.match_info['path']}")
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(502, "bad_gateway", "the server behind this address does not answer") from error

    async def work(self, request: web.Request) -> web.StreamResponse:
        """Forward any request to another server of a runtime, at one of its ports that can be reached."""
        pod, port = self._double.pods.get(request.match_info["runtime"]), int(request.match_info["port"])
        if pod is None or not pod.machine.runs or port not in pod.machine.work_ports:
            raise ApiError(404 if pod is None else 503, "unavailable", "no server is available to handle this request")
        try:
            return await forward_request(request, f"http://127.0.0.1:{port}/{request.match_info['path']}")
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(502, "bad_gateway", "the server behind this address does not answer") from error

    def _shown(self, pod: Pod) -> dict[str, Any]:
        return {
            "runtime_id": pod.id,
            "session_id": pod.requested["session_id"],
            "url": pod.machine.url if self._double.direct else f"{self._double.url}/sandbox/{pod.id}",
            "session_api_key": pod.key,
            "status": pod.status,
            "pod_status": pod.pod_status,
            **self._hosts(pod),
            "restart_count": len(pod.restarts),
            "restart_reasons": pod.restarts,
            "container_statuses": pod.statuses,
        }

    def _hosts(self, pod: Pod) -> dict[str, Any]:
        hosts = {f"{self._double.url}/ports/{pod.id}/{port}": port for port in pod.machine.work_ports}
        return {"work_hosts": hosts} if self._double.publishes_hosts else {}
