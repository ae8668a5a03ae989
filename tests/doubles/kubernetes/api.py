"""An API server: lists and watches, conflicts, errors in its own words, and commands in pods over WebSockets."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from spawner.runtimes.kubernetes.rbac import RULES
from tests.doubles.kubernetes.admission import admit, pod_of
from tests.doubles.kubernetes.authorization import authorize
from tests.doubles.kubernetes.commands import executed, refused
from tests.doubles.kubernetes.kubelet import Kubelet
from tests.doubles.kubernetes.store import KINDS, ApiError, Event, Json, Selector, Store

GROUPS = {"networking.k8s.io": {"v1": ["networkpolicies"]}, "apps": {"v1": ["deployments"]}}
_VERBS = ["create", "delete", "get", "list", "patch", "watch"]
_BOOKMARK = 1.0
_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")


@dataclass
class Fault:
    """A fault of the next matching requests."""

    method: str
    path: str
    """A part of the path."""
    error: ApiError | None = None
    after: bool = False
    """The request takes effect, and its response is lost."""
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 1

    def takes(self, request: web.Request) -> bool:
        return self.times > 0 and request.method == self.method and self.path in request.path


class Api:
    """The server. `sandboxes` is the version of Sandboxes that it serves, or None."""

    def __init__(self, store: Store, kubelet: Kubelet, token: str, sandboxes: str | None = None) -> None:
        self.store = store
        self.kubelet = kubelet
        self.token = token
        self.open_to_all = False
        self.silent = False
        """Whether commands are accepted and never answered, not even a ping: as by a node that is lost."""
        self.refused_pods: ApiError | None = None
        """The response to the controller of Sandboxes when it makes a pod."""
        self.no_kubelet = ""
        """The response to a command where the node's kubelet is down."""
        self.faults: list[Fault] = []
        self.rules: list[Json] | None = RULES
        """The permissions of the spawner; None permits everything."""
        self.telling = asyncio.Event()
        """While set, watches receive events. While cleared, new watches are accepted, but receive nothing."""
        self.telling.set()
        self.marks = 0
        """The number of bookmarks sent."""
        self.requested: list[tuple[str, str]] = []
        """Every request: its method, and its path with its query."""
        self.groups = GROUPS | ({"agents.x-k8s.io": {sandboxes: ["sandboxes"]}} if sandboxes else {})
        self.streams: dict[web.StreamResponse, web.Request] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        if sandboxes:
            store.listeners.append(self._controller)

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._outer], client_max_size=64 * 1024 * 1024)
        app.router.add_get("/version", self._version)
        app.router.add_get("/api", self._core)
        app.router.add_get("/apis", self._all_groups)
        app.router.add_get("/apis/{group}", self._group)
        for base in ("/api/{version:v1}", "/apis/{group}/{version}"):
            app.router.add_get(base, self._resources)
            things = base + "/namespaces/{namespace}/{resource}"
            app.router.add_get(base + "/{resource}", self._list)
            app.router.add_get(things, self._list)
            app.router.add_post(things, self._create)
            app.router.add_get(things + "/{name}", self._get)
            app.router.add_patch(things + "/{name}", self._patch)
            app.router.add_delete(things + "/{name}", self._delete)
        app.router.add_get("/api/v1/namespaces/{namespace}/{resource:pods}/{name}/exec", self._exec)
        app.router.add_get("/api/v1/namespaces/{namespace}/{resource:pods}/{name}/log", self._log)
        return app

    @web.middleware
    async def _outer(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self.requested.append((request.method, request.path_qs))
        fault = next((one for one in self.faults if one.takes(request)), None)
        try:
            self._admit(request, fault)
            answer = await handler(request)
            if fault and fault.after and request.transport is not None:
                request.transport.abort()
            return answer
        except ApiError as error:
            headers = fault.headers if fault and error is fault.error else {}
            return web.json_response(error.status, status=error.code, headers=headers)
        except web.HTTPNotFound:
            return web.Response(status=404, text="404 page not found\n")

    def cut(self) -> None:
        """Break every watch, as a proxy in between may do."""
        for request in self.streams.values():
            if request.transport is not None:
                request.transport.abort()
        self.streams.clear()

    def _admit(self, request: web.Request, fault: Fault | None) -> None:
        if not self.open_to_all and request.headers.get("Authorization") != f"Bearer {self.token}":
            raise ApiError(401, "Unauthorized", "Unauthorized")
        if self.rules is not None and not self.open_to_all:
            authorize(request, self.rules)
        if fault:
            fault.times -= 1
            if not fault.after and fault.error is not None:
                raise fault.error

    # --- what there is -------------------------------------------------------------------------------------------

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"major": "1", "minor": "35", "gitVersion": "v1.35.2", "platform": "linux/amd64"})

    async def _core(self, request: web.Request) -> web.Response:
        return web.json_response({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})

    async def _all_groups(self, request: web.Request) -> web.Response:
        groups = [self._described(name) for name in self.groups]
        return web.json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})

    async def _group(self, request: web.Request) -> web.Response:
        name = request.match_info["group"]
        if name not in self.groups:
            raise web.HTTPNotFound
        return web.json_response({"kind": "APIGroup", "apiVersion": "v1", **self._described(name)})

    def _described(self, name: str) -> Json:
        versions = [{"groupVersion": f"{name}/{one}", "version": one} for one in self.groups[name]]
        return {"name": name, "versions": versions, "preferredVersion": versions[0]}

    async def _resources(self, request: web.Request) -> web.Response:
        group, version = request.match_info.get("group"), request.match_info["version"]
        if group is None:
            found = [_resource("pods"), {**_resource("pods"), "name": "pods/exec", "kind": "PodExecOptions"}]
        else:
            found = [_resource(name) for name in self.groups.get(group, {}).get(version) or _none()]
        name = f"{group}/{version}" if group else version
        return web.json_response(
            {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": found}
        )

    # --- objects -------------------------------------------------------------------------------------------------

    def _resource_of(self, request: web.Request) -> tuple[str, str]:
        found, group = request.match_info["resource"], request.match_info.get("group")
        there = ["pods"] if group is None else self.groups.get(group, {}).get(request.match_info["version"], [])
        if found not in there:
            raise web.HTTPNotFound
        return found, request.match_info.get("namespace", "")

    async def _list(self, request: web.Request) -> web.StreamResponse:
        resource, namespace = self._resource_of(request)
        query = request.query
        selector = Selector(query.get("labelSelector", ""), query.get("fieldSelector", ""))
        if query.get("watch") in {"true", "1"}:
            return await self._watch(request, resource, namespace or None, selector)
        items = self.store.listed(resource, namespace or None, selector)
        metadata = {"resourceVersion": str(self.store.version)}
        return web.json_response(
            {"kind": f"{KINDS[resource]}List", "apiVersion": _version(request), "metadata": metadata, "items": items}
        )

    async def _watch(
        self, request: web.Request, resource: str, namespace: str | None, selector: Selector
    ) -> web.StreamResponse:
        since = int(request.query.get("resourceVersion") or 0)
        stream = web.StreamResponse(headers={"Content-Type": "application/json"})
        await stream.prepare(request)
        self.streams[stream] = request
        try:
            with suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(float(request.query.get("timeoutSeconds") or 1800)):
                    await self.telling.wait()
                    if not since:
                        since = self.store.version
                        for item in self.store.listed(resource, namespace, selector):
                            await _write(stream, "ADDED", item)
                    await self._notify(request, stream, resource, namespace, selector, since)
        finally:
            self.streams.pop(stream, None)
        return stream

    async def _notify(
        self,
        request: web.Request,
        stream: web.StreamResponse,
        resource: str,
        namespace: str | None,
        selector: Selector,
        since: int,
    ) -> None:
        bookmarks = request.query.get("allowWatchBookmarks") in {"true", "1"}
        news = self.store.watch(resource, namespace, selector, since)
        coming: asyncio.Task[Event] | None = None
        try:
            while stream in self.streams:
                coming = coming or asyncio.create_task(anext(news))  # type: ignore[arg-type]  # an awaitable
                done, _ = await asyncio.wait({coming}, timeout=_BOOKMARK)
                if not done:
                    if bookmarks:
                        mark = {
                            "kind": KINDS[resource],
                            "apiVersion": "v1",
                            "metadata": {"resourceVersion": str(self.store.version)},
                        }
                        await _write(stream, "BOOKMARK", mark)
                        self.marks += 1
                    continue
                try:
                    event = coming.result()
                except ApiError as error:
                    await _write(stream, "ERROR", error.status)
                    return
                coming = None
                await _write(stream, event.type, event.object)
        finally:
            if coming is not None:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)

    async def _create(self, request: web.Request) -> web.Response:
        resource, namespace = self._resource_of(request)
        body = await request.json()
        admit(body)
        if resource == "pods":
            body["status"] = {"phase": "Pending", "qosClass": "Guaranteed"}
        return web.json_response(self.store.create(resource, namespace, body), status=201)

    async def _get(self, request: web.Request) -> web.Response:
        resource, namespace = self._resource_of(request)
        return web.json_response(self.store.get(resource, namespace, request.match_info["name"]))

    async def _patch(self, request: web.Request) -> web.Response:
        resource, namespace = self._resource_of(request)
        if request.content_type != "application/merge-patch+json":
            raise ApiError(
                415,
                "UnsupportedMediaType",
                f"the body of the request was in an unknown format - {request.content_type}",
            )
        patch = await request.json()
        return web.json_response(self.store.patch(resource, namespace, request.match_info["name"], patch))

    async def _delete(self, request: web.Request) -> web.Response:
        resource, namespace = self._resource_of(request)
        name = request.match_info["name"]
        item = self.store.get(resource, namespace, name)
        body = await request.json() if request.can_read_body else {}
        usual = item["spec"].get("terminationGracePeriodSeconds", 30)
        grace = body.get("gracePeriodSeconds", request.query.get("gracePeriodSeconds", usual))
        await self._end(resource, item, int(grace))
        return web.json_response(item)

    async def _end(self, resource: str, item: Json, grace: int) -> None:
        meta = item["metadata"]
        if resource == "pods":
            held = item["metadata"].get("deletionGracePeriodSeconds")
            if held is not None and grace < held:
                self.kubelet.hasten(meta["uid"])
            if held is None or grace == 0:
                self._later(self.kubelet.delete(item, grace))
                await asyncio.sleep(0)
        else:
            self.store.remove(resource, meta["namespace"], meta["name"])
        for kind, space, name in self.store.orphans(meta["uid"]):
            await self._end(kind, self.store.get(kind, space, name), 30)

    def _later(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _controller(self, event: Event) -> None:
        """The controller of Sandboxes: it creates the pod of each, and creates it again if it was deleted."""
        meta = event.object["metadata"]
        if event.resource == "sandboxes" and event.type == "ADDED":
            self._later(self._pod_for(event.object))
        elif event.resource == "pods" and event.type == "DELETED":
            for one in meta.get("ownerReferences") or []:
                owner = self.store.objects.get(("sandboxes", meta["namespace"], one["name"]))
                if one["kind"] == "Sandbox" and owner and not owner["metadata"].get("deletionTimestamp"):
                    self._later(self._pod_for(owner))

    async def _pod_for(self, sandbox: Json) -> None:
        meta = sandbox["metadata"]
        owner = {"apiVersion": sandbox["apiVersion"], "kind": "Sandbox", "name": meta["name"], "uid": meta["uid"]}
        pod = pod_of(sandbox)
        pod["metadata"] |= {"ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}]}
        pod["metadata"]["labels"] = {
            **pod["metadata"].get("labels", {}),
            "agents.x-k8s.io/sandbox-name-hash": "0a1b2c3d",
        }
        pod["status"] = {"phase": "Pending", "qosClass": "Guaranteed"}
        try:
            if self.refused_pods:
                raise self.refused_pods
            self.store.create("pods", meta["namespace"], pod)
        except ApiError as error:
            seen = {"type": "Ready", "status": "False", "reason": "ReconcilerError", "message": f"Error seen: {error}"}
            self.store.patch("sandboxes", meta["namespace"], meta["name"], {"status": {"conditions": [seen]}})

    async def _log(self, request: web.Request) -> web.StreamResponse:
        """The log of a container. A real node has a file for each life; here one file counts as the present life's."""
        query = request.query
        pod = self.store.get("pods", request.match_info["namespace"], request.match_info["name"])
        if query.get("previous") == "true":
            raise ApiError(400, "BadRequest", "previous terminated container not found")
        stream = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await stream.prepare(request)
        container = self.kubelet.containers[pod["metadata"]["uid"]]
        lines = container.log.read_bytes().splitlines(keepends=True)
        at = container.log.stat().st_size
        await stream.write(b"".join(lines[-int(query.get("tailLines", len(lines))) :]))
        while query.get("follow") == "true" and container.runs:
            await asyncio.sleep(0.02)
            more = container.log.read_bytes()[at:]
            at += len(more)
            await stream.write(more)
        return stream

    # --- commands ------------------------------------------------------------------------------------------------

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        name, query = request.match_info["name"], request.query
        pod = self.store.get("pods", request.match_info["namespace"], name)
        container = self.kubelet.containers.get(pod["metadata"]["uid"])
        status = (pod["status"].get("containerStatuses") or [{}])[0]
        wanted = query.get("container", status.get("name"))
        if wanted != pod["spec"]["containers"][0]["name"]:
            raise ApiError(400, "BadRequest", f"container {wanted} is not valid for pod {name}")
        if pod["status"]["phase"] in {"Failed", "Succeeded"}:
            phase = pod["status"]["phase"]
            raise ApiError(
                400, "BadRequest", f"cannot exec into a container in a completed pod; current phase is {phase}"
            )
        if container is None or "running" not in (status.get("state") or {}):
            raise ApiError(500, "InternalError", f'unable to upgrade connection: container not found ("{wanted}")')
        socket = web.WebSocketResponse(protocols=_PROTOCOLS, max_msg_size=0)
        await socket.prepare(request)
        if self.no_kubelet:
            return await refused(socket, self.no_kubelet)
        while self.silent and request.transport is not None:
            await asyncio.sleep(0.05)
        if request.transport is not None:
            await executed(socket, await container.execute(query.getall("command")))
        return socket


async def _write(stream: web.StreamResponse, type: str, item: Json) -> None:
    await stream.write(json.dumps({"type": type, "object": item}).encode() + b"\n")


def _resource(name: str) -> Json:
    return {"name": name, "singularName": "", "namespaced": True, "kind": KINDS[name], "verbs": _VERBS}


def _none() -> list[str]:
    raise web.HTTPNotFound


def _version(request: web.Request) -> str:
    group, version = request.match_info.get("group"), request.match_info["version"]
    return f"{group}/{version}" if group else version
