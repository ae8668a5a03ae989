"""A forge: one HTTP server for its API and for git, with what all forges have in common.

Each request is recorded, may be hit by a fault that a test scripted, and is answered by the forge. Whatever violates
the published document ends the test that used the forge: it is raised when the forge is closed.
"""

import hashlib
import shutil
import tempfile
import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping
from email.utils import format_datetime
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from aiohttp import web

from tests.doubles.forges.calls import Call, Calls
from tests.doubles.forges.clock import Clock
from tests.doubles.forges.faults import Fault, Faults, Way
from tests.doubles.forges.replies import ABSENT, ApiError, Reply
from tests.doubles.git_server import GitServer
from tests.http_servers import stop_server

_NOT_MODIFIED: Final = 304
_OK: Final = 200


class ViolationError(AssertionError):
    """The double, or a client of it, did not follow the forge's published document."""


class Forge(ABC):
    """A forge at a random port of the loopback interface; use it with `async with`."""

    prefix: ClassVar[str]
    """The path of the API."""
    etags: ClassVar[bool] = True
    """Whether responses have ETags."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.faults, self.calls = Faults(), Calls()
        self.violations: list[str] = []
        """Responses of the double that are not as documented."""
        self.invalid_requests: list[str] = []
        """Requests that are not as documented."""
        self.permits_invalid_requests = False
        """Whether a test sends invalid requests on purpose."""
        self.folder = Path(tempfile.mkdtemp(prefix="forge-"))
        self.git = GitServer(self.folder / "served", admits=self.admit)
        self.url = ""
        self._runner: web.AppRunner | None = None

    @property
    def api_url(self) -> str:
        """The base of the API's URLs."""
        return self.url + self.prefix

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._receive)
        self._runner = web.AppRunner(app, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = "http://{}:{}".format(*self._runner.addresses[0])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.faults.release()
        assert self._runner is not None
        await stop_server(self._runner)
        shutil.rmtree(self.folder, ignore_errors=True)
        if error is None:
            self.verify()

    def verify(self) -> None:
        """Raises `ViolationError` if the double or its client did not follow the document."""
        invalid = [] if self.permits_invalid_requests else self.invalid_requests
        if self.violations or invalid:
            raise ViolationError("\n".join(["", *self.violations, *invalid]))

    @abstractmethod
    def admit(self, request: web.Request, password: str | None) -> Mapping[str, str]:
        """Admit a request of git, and return variables for its hooks. Raises `git_server.RefusedError`."""

    @abstractmethod
    async def answer(self, call: Call) -> Reply:
        """The response to a request to the API. Raises `ApiError`."""

    @abstractmethod
    def recognize(self, call: Call) -> None:
        """Set the operation of a request, and its parameters."""

    def check_reply(self, call: Call, reply: Reply) -> Reply:
        """Check a response before it is sent: what is not as documented is recorded."""
        return reply

    def add_headers(self, call: Call, reply: Reply) -> None:
        """Add the headers that every response has."""
        reply.headers.setdefault("date", format_datetime(self.clock.now(), usegmt=True))

    # --- faults, for tests ---------------------------------------------------------------------------------------

    def refuse(self, request: str, reply: Reply, *, times: int = 1, skip: int = 0) -> Fault:
        """Send this response instead of doing what is requested."""
        return self.faults.add(Fault(request, Way.INSTEAD, reply, times, skip))

    def lose(self, request: str, *, times: int = 1, skip: int = 0) -> Fault:
        """Do what is requested, then close the connection without a response."""
        return self.faults.add(Fault(request, Way.LOST, None, times, skip))

    def break_off(self, request: str, way: Way, *, times: int = 1, skip: int = 0) -> Fault:
        """Add any other fault that has no response of its own."""
        return self.faults.add(Fault(request, way, None, times, skip))

    # --- the way of a request ------------------------------------------------------------------------------------

    async def _receive(self, request: web.Request) -> web.StreamResponse:
        path = request.rel_url.raw_path
        call = Call(
            request.method,
            path,
            "",
            self.clock.now(),
            dict(request.query),
            headers={name.lower(): text for name, text in request.headers.items()},
        )
        self.calls.append(call)
        if path.startswith(self.prefix + "/"):
            call.path, call.raw = path.removeprefix(self.prefix), await request.read()
            self.recognize(call)
        else:
            call.operation = _git_operation(request)
        fault = self.faults.next(call.operation, f"{call.method} {call.path}")
        if fault and fault.way is Way.DELAYED:
            await fault.released.wait()
        if fault and fault.way in {Way.DROPPED, Way.INSTEAD}:
            return await self._send(request, call, fault.reply or Reply(_OK), fault)
        if call.operation.startswith("transport/"):
            return await self._git(request, call, fault)
        reply = await self._reply(request, call)
        if fault and fault.way is Way.REPLACED:
            assert fault.reply is not None
            reply = fault.reply
        return await self._send(request, call, reply, fault)

    async def _git(self, request: web.Request, call: Call, fault: Fault | None) -> web.StreamResponse:
        assert fault is None or fault.way in {Way.LOST, Way.DELAYED}, "git's responses are not cut or replaced"
        response = await self.git.answer(request)
        call.status = response.status
        if fault and fault.way is Way.LOST:
            _close(request)
        return response

    async def _reply(self, request: web.Request, call: Call) -> Reply:
        try:
            return self.check_reply(call, await self.answer(call))
        except ApiError as error:
            return self.check_reply(call, error.reply)
        except Exception as error:  # noqa: BLE001  # aiohttp would only log it, and the test has to fail
            self.violations.append(f"{call.method} {call.path}: {''.join(traceback.format_exception(error))}")
            return Reply(500, {"message": f"the double failed: {error!r}"})

    async def _send(self, request: web.Request, call: Call, reply: Reply, fault: Fault | None) -> web.StreamResponse:
        if self.etags and call.method == "GET" and reply.status == _OK and reply.body is not ABSENT:
            reply = _unless_known(call, reply)
        call.status = reply.status
        self.add_headers(call, reply)
        body = reply.encode()
        response = web.StreamResponse(status=reply.status, headers=reply.headers)
        if body:
            response.headers.setdefault("Content-Type", reply.content_type)
        response.content_length = len(body)
        if fault and fault.way in {Way.LOST, Way.DROPPED}:
            _close(request)
            return response
        await response.prepare(request)
        half = len(body) // 2
        await response.write(body[:half])
        if fault and fault.way is Way.CUT:
            _close(request)
            return response
        if fault and fault.way is Way.SLOW:
            await fault.released.wait()
        await response.write(body[half:])
        return response


def _git_operation(request: web.Request) -> str:
    return "transport/" + ("info-refs" if request.path.endswith("/info/refs") else request.path.rsplit("git-", 1)[-1])


def _close(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()


def _unless_known(call: Call, reply: Reply) -> Reply:
    """The response, or 304 if the client already has it."""
    tag = 'W/"' + hashlib.sha256(reply.encode()).hexdigest() + '"'
    known = {one.strip().removeprefix("W/") for one in call.headers.get("if-none-match", "").split(",")}
    if tag.removeprefix("W/") in known:
        return Reply(_NOT_MODIFIED, headers={**reply.headers, "ETag": tag})
    return Reply(reply.status, reply.body, {**reply.headers, "ETag": tag}, reply.raw, reply.content_type)
