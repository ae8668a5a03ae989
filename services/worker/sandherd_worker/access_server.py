"""Serves requests about the sandbox's commands and files, from the event `started` to the source's last event.

During that time it also runs the agent server, if the spec has one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from nats.aio.msg import Msg
from pydantic import BaseModel, ValidationError

from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus, BusError
from sandherd.concurrency import SHORT_CLEANUP_SECONDS, cancel_and_wait
from sandherd.contracts.commands import SandboxSpec
from sandherd.contracts.errors import Code, ContractError, Problem
from sandherd.contracts.requests import Reply, Request
from sandherd.contracts.requests.worker import (
    WorkerDownload,
    WorkerExec,
    WorkerExecInput,
    WorkerExecKill,
    WorkerExecStatus,
    WorkerListFiles,
    WorkerPortRead,
    WorkerPortWrite,
    WorkerUpload,
)
from sandherd.contracts.subjects import sandbox_request_subject
from sandherd.telemetry import logs
from sandherd_worker.harness_factory import environment
from sandherd_worker.spool_disk import SpoolError
from sandherd_worker.worker_resources import WorkerResources

if TYPE_CHECKING:
    from sandherd_worker.agent_server.supervisor import Supervisor

MAX_CONCURRENT: Final = 128
"""Maximum of requests that are handled at the same time. Each may wait some seconds for its reply."""
_log: Final = logs.get("access_server")

Handler = Callable[[Any], Awaitable[BaseModel]]


class AccessServer:
    """Handles requests concurrently, so that none waits for another. An invalid request gets an error as its reply."""

    def __init__(self, resources: WorkerResources, spec: SandboxSpec) -> None:
        self._resources, self._spec = resources, spec
        self._responding: set[asyncio.Task[None]] = set()
        self._handling = 0
        self._opened, self._closed = asyncio.Event(), False
        self._handlers: dict[type[Request[Any]], Handler] | None = None
        self._closing: list[Callable[[], Awaitable[None]]] = []
        self._server: Supervisor | None = None

    async def serve(self, bus: Bus) -> None:
        """Subscribe to requests on this connection. Returns at once; the subscriptions end with the connection."""
        assignment = self._resources.assignment
        for kind in _KINDS:
            subject = sandbox_request_subject(kind.type, assignment.project, assignment.sandbox)
            await bus.client.subscribe(subject, cb=partial(self._on_request, kind))

    async def open(self) -> None:
        """Handle requests from now on, and start the agent server if the spec has one. Raises `SpoolError`.

        Earlier requests have waited, because no event of a sandbox may be published before its start.
        """
        self._opened.set()
        if self._spec.agent_server is not None:
            from sandherd_worker.agent_server.openhands import make

            self._server = await make(self._resources, self._spec, self._spec.agent_server)
            if self._server is not None:
                self._server.start()

    async def close(self) -> None:
        """Stop handling requests, and end the running commands and the agent server. Idempotent.

        The events of their ends are published.
        """
        self._closed = True
        self._opened.set()
        for close in self._closing:
            await close()
        self._closing.clear()
        if self._server is not None:
            await self._server.stop()
        await cancel_and_wait(self._responding, again_after=SHORT_CLEANUP_SECONDS)

    async def handle(self, kind: type[Request[Any]], document: bytes) -> bytes:
        """The reply to a request. Every error of its handler becomes an error reply."""
        try:
            reply = _ok(await self._handle(kind, document))
        except ContractError as error:
            reply = Reply[Any](error=error.problem)
        except (SpoolError, BusError, OSError) as error:
            reply = Reply[Any](error=Problem(code=Code.UNAVAILABLE, message=f"unavailable: {error}"))
        except Exception as error:  # noqa: BLE001  # the client gets an error as its reply, and the worker continues
            _log.error("request failed", request=kind.type, **logs.error_fields(error))
            reply = Reply[Any](error=Problem(code=Code.INTERNAL, message=f"{type(error).__name__} in the worker"))
        return reply.model_dump_json(exclude_none=True).encode()

    async def _on_request(self, kind: type[Request[Any]], message: Msg) -> None:
        """Handle the request in a task: nats-py delivers the next request only after this callback returns."""
        if self._resources.inbox.misdirected.ignores(message):
            return
        task = asyncio.create_task(self._respond(kind, message))
        self._responding.add(task)
        task.add_done_callback(self._responding.discard)

    async def _respond(self, kind: type[Request[Any]], message: Msg) -> None:
        reply = await self.handle(kind, message.data)
        try:
            await message.respond(reply)
        except BROKER_ERRORS as error:
            # The client repeats the request: every request may be repeated.
            _log.warning("reply not sent", request=kind.type, error=repr(error))

    async def _handle(self, kind: type[Request[Any]], document: bytes) -> BaseModel:
        if self._handling >= MAX_CONCURRENT:
            raise ContractError(Code.UNAVAILABLE, "too many requests to this sandbox at once", remedy="retry")
        # Refused requests are not counted: otherwise a burst of requests would block itself forever.
        self._handling += 1
        try:
            await self._opened.wait()
            if self._closed:
                raise ContractError(
                    Code.CONFLICT, f"sandbox {self._resources.assignment.sandbox} is ending", field="sandbox"
                )
            return await self._handler(kind)(_parsed(kind, document))
        finally:
            self._handling -= 1

    def _handler(self, kind: type[Request[Any]]) -> Handler:
        """Loaded on first use: most sandboxes get no requests."""
        if self._handlers is None:
            self._handlers = self._make_handlers()
        return self._handlers[kind]

    def _make_handlers(self) -> dict[type[Request[Any]], Handler]:
        from sandherd_worker.access.commands import UserCommands
        from sandherd_worker.access.directory_entries import list_files
        from sandherd_worker.access.ports import PortConnections
        from sandherd_worker.access.safe_paths import WorkTreePaths
        from sandherd_worker.access.transfers import Transfers

        tree = WorkTreePaths(self._resources.assignment.work_dir)
        commands = UserCommands(self._resources, environment(self._spec, self._resources.assignment), tree)
        transfers = Transfers(self._resources, tree)
        ports = PortConnections()
        self._closing = [ports.close, transfers.close, commands.close]
        return {
            WorkerExec: commands.start,
            WorkerExecStatus: commands.status,
            WorkerExecKill: commands.kill,
            WorkerExecInput: commands.accept_input,
            WorkerPortWrite: ports.write,
            WorkerPortRead: ports.read,
            WorkerListFiles: lambda request: asyncio.to_thread(list_files, tree, request),
            WorkerUpload: transfers.upload,
            WorkerDownload: transfers.download,
        }


_KINDS: Final = (
    WorkerExec,
    WorkerExecStatus,
    WorkerExecKill,
    WorkerExecInput,
    WorkerPortWrite,
    WorkerPortRead,
    WorkerListFiles,
    WorkerUpload,
    WorkerDownload,
)


def _parsed(kind: type[Request[Any]], document: bytes) -> Request[Any]:
    try:
        return kind.model_validate_json(document, strict=True)
    except ValidationError as error:
        raise ContractError.from_validation(error) from None


def _ok(answer: BaseModel) -> Reply[Any]:
    return _reply_of(type(answer))(ok=answer)


@cache
def _reply_of(answer: type[BaseModel]) -> type[Reply[Any]]:
    return Reply[answer]  # type: ignore[valid-type]  # a model chosen at run time
