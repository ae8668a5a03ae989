"""What may be asked of the worker about its sandbox: commands and files. Answered from `started` to the last word.

So long there is also the server that a spec may want beside the worker.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

import nats.errors
from nats.aio.msg import Msg
from pydantic import BaseModel, ValidationError

from sandherd.bus.connection import Bus, BusError
from sandherd.contracts.commands import SandboxSpec
from sandherd.contracts.errors import Code, ContractError, Problem
from sandherd.contracts.requests import Reply, Request
from sandherd.contracts.requests.worker import (
    WorkerDownload,
    WorkerExec,
    WorkerExecKill,
    WorkerExecStatus,
    WorkerListFiles,
    WorkerUpload,
)
from sandherd.contracts.subjects import sandbox_request_subject
from sandherd.telemetry import logs
from sandherd_worker.agents import environment
from sandherd_worker.parts import Parts
from sandherd_worker.spool_disk import SpoolError
from sandherd_worker.tasks import end_tasks

if TYPE_CHECKING:
    from sandherd_worker.serving.supervising import Supervisor

MOST_AT_ONCE: Final = 128
"""How many questions may be in the air; each may wait some seconds for its answer."""
_log: Final = logs.get("access")

Handler = Callable[[Any], Awaitable[BaseModel]]


class Room:
    """Answers each question for itself, so that none waits for another. What is rubbish gets a refusal, too."""

    def __init__(self, parts: Parts, spec: SandboxSpec) -> None:
        self._parts, self._spec = parts, spec
        self._answering: set[asyncio.Task[None]] = set()
        self._being_answered = 0
        self._opened, self._closed = asyncio.Event(), False
        self._handlers: dict[type[Request[Any]], Handler] | None = None
        self._closing: list[Callable[[], Awaitable[None]]] = []
        self._server: Supervisor | None = None

    async def serve(self, bus: Bus) -> None:
        """Take questions from this connection. Returns at once; the connection's end ends it."""
        who = self._parts.who
        for kind in _KINDS:
            subject = sandbox_request_subject(kind.type, who.project, who.sandbox)
            await bus.client.subscribe(subject, cb=partial(self._on_question, kind))

    async def open(self) -> None:
        """Answer from now on, and start what the spec wants beside the worker. Raises `SpoolError`.

        Whoever asked before has waited: nothing is said of a sandbox before that it started.
        """
        self._opened.set()
        if self._spec.agent_server is not None:
            from sandherd_worker.serving.openhands import make

            self._server = await make(self._parts, self._spec, self._spec.agent_server)
            if self._server is not None:
                self._server.start()

    async def close(self) -> None:
        """Answer no more; end the commands that run and the server, and say so. Done already: nothing happens."""
        self._closed = True
        self._opened.set()
        for close in self._closing:
            await close()
        self._closing.clear()
        if self._server is not None:
            await self._server.stop()
        await end_tasks(self._answering)

    async def answer(self, kind: type[Request[Any]], document: bytes) -> bytes:
        """The reply to a question. Never raises for what was asked."""
        try:
            reply = _ok(await self._handle(kind, document))
        except ContractError as error:
            reply = Reply[Any](error=error.problem)
        except (SpoolError, BusError, OSError) as error:
            reply = Reply[Any](error=Problem(code=Code.UNAVAILABLE, message=f"not now: {error}"))
        except Exception as error:  # noqa: BLE001  # an asker must not wait for nothing, nor the worker end for it
            _log.error("could not answer", request=kind.type, **logs.place(error))
            reply = Reply[Any](error=Problem(code=Code.INTERNAL, message=f"{type(error).__name__} in the worker"))
        return reply.model_dump_json(exclude_none=True).encode()

    async def _on_question(self, kind: type[Request[Any]], message: Msg) -> None:
        """Answer beside the others: nats-py would give the next question only after this one's answer."""
        task = asyncio.create_task(self._respond(kind, message))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _respond(self, kind: type[Request[Any]], message: Msg) -> None:
        answer = await self.answer(kind, message.data)
        if not message.reply:
            return
        try:
            await message.respond(answer)
        except (nats.errors.Error, OSError) as error:
            # It is asked again: every question may be repeated.
            _log.warning("an answer could not be given", request=kind.type, error=repr(error))

    async def _handle(self, kind: type[Request[Any]], document: bytes) -> BaseModel:
        if self._being_answered >= MOST_AT_ONCE:
            raise ContractError(Code.UNAVAILABLE, "too much is asked of this sandbox at once", remedy="ask again")
        # Those that are refused are not counted: a crowd that comes at once would keep itself out for ever.
        self._being_answered += 1
        try:
            await self._opened.wait()
            if self._closed:
                raise ContractError(Code.CONFLICT, f"sandbox {self._parts.who.sandbox} is ending", field="sandbox")
            return await self._handler(kind)(_question(kind, document))
        finally:
            self._being_answered -= 1

    def _handler(self, kind: type[Request[Any]]) -> Handler:
        """Most sandboxes are never asked anything: what answers is loaded and made when it is."""
        if self._handlers is None:
            self._handlers = self._make_handlers()
        return self._handlers[kind]

    def _make_handlers(self) -> dict[type[Request[Any]], Handler]:
        from sandherd_worker.access.beneath import Beneath
        from sandherd_worker.access.commands import Commands
        from sandherd_worker.access.entries import list_files
        from sandherd_worker.access.transfers import Transfers

        beneath = Beneath(self._parts.who.work_dir)
        commands = Commands(self._parts, environment(self._spec, self._parts.who), beneath)
        transfers = Transfers(self._parts, beneath)
        self._closing = [transfers.close, commands.close]
        return {
            WorkerExec: commands.start,
            WorkerExecStatus: commands.status,
            WorkerExecKill: commands.kill,
            WorkerListFiles: lambda asked: asyncio.to_thread(list_files, beneath, asked),
            WorkerUpload: transfers.upload,
            WorkerDownload: transfers.download,
        }


_KINDS: Final = (WorkerExec, WorkerExecStatus, WorkerExecKill, WorkerListFiles, WorkerUpload, WorkerDownload)


def _question(kind: type[Request[Any]], document: bytes) -> Request[Any]:
    try:
        return kind.model_validate_json(document, strict=True)
    except ValidationError as error:
        raise ContractError.from_validation(error) from None


def _ok(answer: BaseModel) -> Reply[Any]:
    return _reply_of(type(answer))(ok=answer)


@cache
def _reply_of(answer: type[BaseModel]) -> type[Reply[Any]]:
    return Reply[answer]  # type: ignore[valid-type]  # a model chosen at run time
