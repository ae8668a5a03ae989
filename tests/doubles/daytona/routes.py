"""The routes of the double: the control plane below `/api`, and requests to sandboxes below `/toolbox`."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import aiohttp
import socketio  # type: ignore[import-untyped]  # no types
from aiohttp import web

from tests.doubles.daytona.answers import NOT_LISTED, ApiError, answer, daemon_error, snapshot
from tests.doubles.daytona.machine import Machine, NoToolboxError, RefusedError
from tests.doubles.http_forwarder import forward_request

if TYPE_CHECKING:
    from tests.doubles.daytona.double import Double

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_LARGEST = 256 * 1024 * 1024
_PAGE = 100
_SHOWN = "x-daytona-preview-token"


def application(double: "Double") -> web.Application:
    """The double as an application of aiohttp."""
    from tests.doubles.daytona.double import KEY

    app = web.Application(client_max_size=_LARGEST, middlewares=[_faulty(double), _known(KEY)])
    api, box = "/api/sandbox/{id}", "/toolbox/{id}"
    plane, inside = Plane(double), Inside(double)
    app.add_routes(
        [
            web.post("/api/sandbox", plane.create),
            web.get("/api/sandbox", plane.list),
            web.get(api, plane.get),
            web.delete(api, plane.remove),
            web.post(api + "/{change:start|stop|pause}", plane.change),
            web.put(api + "/labels", plane.label),
            web.get(api + "/ports/{port}/preview-url", plane.preview),
            web.get("/api/snapshots/{name:.+}", plane.snapshot),
            web.route("*", r"/preview/{port:\d+}-{id}/{path:.*}", preview(double)),
            web.post(box + "/process/execute", inside.execute),
            web.post(box + "/process/session", inside.make_session),
            web.get(box + "/process/session/{session}", inside.show_session),
            web.post(box + "/process/session/{session}/exec", inside.in_session),
            web.post(box + "/files/bulk-upload", inside.upload),
            web.post(box + "/files/bulk-download", inside.download),
        ]
    )
    if double.has_events:
        double.events = socketio.AsyncServer(async_mode="aiohttp")

        @double.events.event  # type: ignore[untyped-decorator]  # the same
        async def connect(sid: str, environ: Any, auth: Any) -> None:
            if (auth or {}).get("token") != KEY:
                raise socketio.exceptions.ConnectionRefusedError("Unauthorized")

        double.events.attach(app, socketio_path="api/socket.io")
    return app


def _faulty(double: "Double") -> Any:
    """Apply the faults that a test has set, and send errors in Daytona's form."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        double.requested.append((request.method, request.path))
        fault = next((fault for fault in double.faults if fault.hits(request)), None)
        try:
            if fault and fault.slow:
                await asyncio.sleep(fault.slow)  # as late as the test has set
            if fault and fault.error:
                raise fault.error
            reply = await handler(request)
        except ApiError as error:
            return error.response(request.path)
        except RefusedError as error:
            return daemon_error(error.status, error.code, str(error), request)
        except NoToolboxError:
            return web.Response(status=502, text="Bad Gateway")
        if fault and fault.lost and request.transport:
            request.transport.abort()
        return reply

    return middleware


def _known(key: str) -> Any:
    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        open_to_all = "socket.io" in request.path or request.path.startswith("/preview/")
        if not open_to_all and request.headers.get("Authorization") != f"Bearer {key}":
            raise ApiError(401, "Invalid credentials")
        return await handler(request)

    return middleware


class Plane:
    """The routes of the control plane."""

    def __init__(self, double: "Double") -> None:
        self._double = double

    async def create(self, request: web.Request) -> web.Response:
        held = await self._double.create(await request.json())
        return answer("Sandbox", held.shown)

    async def list(self, request: web.Request) -> web.Response:
        labels = json.loads(request.query.get("labels", "{}"))
        names = sorted(self._double.living(**labels))
        begin, size = (
            int(request.query.get("cursor") or 0),
            min(self._double.page, int(request.query.get("limit") or _PAGE)),
        )
        page = [self._double.of(name).shown for name in names[begin : begin + size]]
        items = [{key: value for key, value in shown.items() if key not in NOT_LISTED} for shown in page]
        for item in items:
            answer("SandboxListItem", item)
        following = str(begin + size) if begin + size < len(names) else None
        return answer("ListSandboxesResponse", {"items": items, "nextCursor": following})

    async def get(self, request: web.Request) -> web.Response:
        return answer("Sandbox", self._double.of(request.match_info["id"]).shown)

    async def change(self, request: web.Request) -> web.Response:
        held = self._double.of(request.match_info["id"])
        wanted = {"start": "started", "stop": "stopped", "pause": "paused"}[request.match_info["change"]]
        if wanted == "paused" and not self._double.can_pause:
            raise ApiError(400, "Pausing is not supported for this sandbox class")
        return answer("Sandbox", (await self._double.change(held, wanted)).shown)

    async def remove(self, request: web.Request) -> web.Response:
        held = self._double.of(request.match_info["id"])
        return answer("Sandbox", (await self._double.change(held, "destroyed")).shown)

    async def label(self, request: web.Request) -> web.Response:
        held = self._double.of(request.match_info["id"])
        held.shown["labels"] = (await request.json())["labels"]
        return answer("SandboxLabels", {"labels": held.shown["labels"]})

    async def preview(self, request: web.Request) -> web.Response:
        """The URL of a port. Daytona gives each port its own host name; such names can't be resolved here."""
        held, port = self._double.of(request.match_info["id"]), request.match_info["port"]
        if not port.isdigit() or not 0 < int(port) <= 65_535:
            raise ApiError(400, "Invalid port")
        url = f"{self._double.url}/preview/{port}-{held.shown['id']}"
        return answer("PortPreviewUrl", {"sandboxId": held.shown["id"], "url": url, "token": held.token})

    async def snapshot(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self._double.snapshots:
            raise ApiError(404, f"Snapshot with name {name} not found")
        return answer("SnapshotDto", snapshot(name, self._double.snapshots[name]))


def preview(double: "Double") -> Handler:
    """Daytona's proxy: it connects only a caller that has the sandbox's token with a server in the sandbox."""

    async def led(request: web.Request) -> web.StreamResponse:
        held, port = double.of(request.match_info["id"]), request.match_info["port"]
        if not held.token or request.headers.get(_SHOWN) != held.token:
            raise ApiError(401, "missing or invalid preview token")
        if held.state != "started":
            raise ApiError(400, "Sandbox is not started")
        try:
            return await forward_request(request, f"http://127.0.0.1:{port}/{request.match_info['path']}", {_SHOWN})
        except (aiohttp.ClientError, OSError):
            return web.Response(status=502, text="Bad Gateway")

    return led


class Inside:
    """The routes of the toolbox daemon of each sandbox, as Daytona's proxy forwards them."""

    def __init__(self, double: "Double") -> None:
        self._double = double

    def _machine(self, request: web.Request) -> Machine:
        held = self._double.of(request.match_info["id"])
        if held.state != "started":
            raise ApiError(400, "Sandbox is not started")
        return held.machine

    async def execute(self, request: web.Request) -> web.Response:
        requested = await request.json()
        return answer("ExecuteResponse", await self._machine(request).ask("execute", **requested))

    async def make_session(self, request: web.Request) -> web.Response:
        await self._machine(request).ask("make_session", session=(await request.json())["sessionId"])
        return web.Response(status=201)

    async def show_session(self, request: web.Request) -> web.Response:
        session = request.match_info["session"]
        return answer("Session", await self._machine(request).ask("show_session", session=session))

    async def in_session(self, request: web.Request) -> web.Response:
        requested = await request.json()
        reply = await self._machine(request).ask(
            "in_session",
            session=request.match_info["session"],
            command=requested["command"],
            run_async=bool(requested.get("runAsync")),
        )
        return answer("SessionExecuteResponse", reply)

    async def upload(self, request: web.Request) -> web.Response:
        machine = self._machine(request)
        paths: dict[str, str] = {}
        async for part in await request.multipart():
            name = str(part.name)  # type: ignore[union-attr]  # none of them holds parts itself
            number, _, what = name.removeprefix("files[").partition("].")
            content = bytes(await part.read())  # type: ignore[union-attr]  # the same
            if what == "path":
                paths[number] = content.decode()
            else:
                await machine.ask("write", path=paths[number], content=base64.b64encode(content).decode())
        return web.Response()

    async def download(self, request: web.Request) -> web.Response:
        machine, paths = self._machine(request), (await request.json())["paths"]
        boundary = uuid4().hex
        body = b"".join([await _part(machine, path, boundary) for path in paths]) + f"--{boundary}--\r\n".encode()
        return web.Response(body=body, headers={"Content-Type": f"multipart/form-data; boundary={boundary}"})


async def _part(machine: Machine, path: str, boundary: str) -> bytes:
    try:
        content = base64.b64decode((await machine.ask("read", path=path))["content"])
        name, kind = "file", "application/octet-stream"
    except RefusedError as error:
        problem = {"message": str(error), "statusCode": error.status, "code": error.code}
        content, name, kind = json.dumps(problem).encode(), "error", "application/json"
    placed = f'Content-Disposition: form-data; name="{name}"; filename="{path}"'
    return f"--{boundary}\r\n{placed}\r\nContent-Type: {kind}\r\n\r\n".encode() + content + b"\r\n"
