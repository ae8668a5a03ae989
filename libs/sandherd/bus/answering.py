"""Answering requests: FastStream carries them, and every asker gets an answer, if only a typed refusal."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import nats.errors
from faststream.nats import NatsBroker
from faststream.nats.message import NatsMessage
from nats.aio.client import Client
from nats.aio.msg import Msg
from pydantic import BaseModel, ValidationError

from sandherd.bus.connection import Bus
from sandherd.bus.together import end
from sandherd.contracts.errors import Code, ContractError, Problem
from sandherd.contracts.names import UnsafeNameError, safe_name
from sandherd.contracts.requests import REQUESTS, Reply, Request
from sandherd.contracts.subjects import BY_NAME, Principal
from sandherd.telemetry import logs, spans, traces
from sandherd.telemetry.meters import Meters

RequestT = TypeVar("RequestT", bound=Request[Any])
_log: Final = logs.get("answering")
_ENDING: Final = Problem(code=Code.UNAVAILABLE, message="this replica of the service is ending", remedy="ask again")


@dataclass(frozen=True)
class Asked(Generic[RequestT]):
    """A question, and what its subject says of the asker: the broker has checked that."""

    request: RequestT
    names: Mapping[str, str]

    @property
    def project(self) -> str:
        """The project asked about; `fleet` is all of them."""
        return self.names["project"]


Answerer = Callable[[Asked[Any]], Awaitable[BaseModel]]
Answering = Callable[[NatsMessage], Awaitable[bytes]]


class _FastStreamLog:
    """FastStream's log lines, in our log."""

    def log(self, level: int, msg: Any, /, *, exc_info: Any = None, extra: Any = None, **_rest: Any) -> None:
        _log.log(level, str(msg), exc_info=exc_info, **(extra or {}))


async def _whole(message: NatsMessage) -> NatsMessage:
    return message


class HerdBroker(NatsBroker):
    """FastStream on a connection of ours: its own gives up after 60 tries, and declares what it must not."""

    def __init__(self, bus: Bus) -> None:
        # A handler is given the message itself: resolving typed parameters costs a worker thread for each.
        super().__init__(
            logger=_FastStreamLog(), log_level=logging.DEBUG, graceful_timeout=5, apply_types=False, decoder=_whole
        )
        self._bus = bus

    async def _connect(self) -> Client:
        self.config.connect(self._bus.client)
        return self._bus.client


class _Apart:
    """Answers that are held back: each is a task, so that the next question of its kind does not wait for it.

    FastStream's own workers (`max_workers`) leave streams open that nobody closes.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = False

    def taking(self, answering: Answering, at_once: int) -> Callable[[NatsMessage], Awaitable[None]]:
        """What takes a question and lets it be answered; it waits while so many are."""
        room = asyncio.Semaphore(at_once)

        async def take(message: NatsMessage) -> None:
            await room.acquire()
            task = asyncio.create_task(self._answer(answering, message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _task: room.release())
            if self._ending:
                task.cancel()

        return take

    async def close(self) -> None:
        """Give everybody who waits an answer now."""
        self._ending = True
        await end(list(self._tasks))

    async def _answer(self, answering: Answering, message: NatsMessage) -> None:
        try:
            document = await answering(message)
        except asyncio.CancelledError:
            await _respond(message, Reply[Any](error=_ENDING).model_dump_json(exclude_none=True).encode())
            raise
        await _respond(message, document)


async def _respond(message: NatsMessage, document: bytes) -> None:
    asked = message.raw_message
    if not isinstance(asked, Msg) or not asked.reply:
        return
    try:
        await asked.respond(document)
    except (nats.errors.Error, OSError) as error:
        _log.warning("could not answer", subject=asked.subject, error=repr(error))


class Answers:
    """The requests that one service answers."""

    def __init__(self, principal: Principal, meters: Meters) -> None:
        self._principal = principal
        self._meters = meters
        self._answers: dict[str, tuple[Answerer, int]] = {}
        self._apart = _Apart()

    def add(self, request: type[Request[Any]], handle: Answerer, at_once: int = 1) -> None:
        """Answer a kind of request, so many at the same time. Raises `ValueError` for one that is another service's."""
        if request.answered_by != self._principal:
            raise ValueError(f"{request.type} is not for {self._principal}")
        self._answers[request.type] = handle, at_once

    def broker(self, bus: Bus) -> NatsBroker:
        """FastStream's broker with a subscriber for each, in the service's queue group; to be started."""
        broker = HerdBroker(bus)
        for request_type, (handle, at_once) in self._answers.items():
            template = BY_NAME[f"request.{request_type}"].template
            answering = self._answering(request_type, handle)
            if at_once == 1:
                broker.subscriber(template, queue=self._principal)(answering)
            else:
                subscriber = broker.subscriber(template, queue=self._principal, no_reply=True)
                subscriber(self._apart.taking(answering, at_once))
        return broker

    async def close(self) -> None:
        """Answer those who still wait that this replica is ending."""
        await self._apart.close()

    def _answering(self, request_type: str, handle: Answerer) -> Answering:
        async def answer(message: NatsMessage) -> bytes:
            begun = time.monotonic()
            reply = await _reply(request_type, handle, message.body, message.path)
            outcome = "ok" if reply.error is None else reply.error.code.value
            self._meters.count("sandherd_requests_total", request=request_type, outcome=outcome)
            self._meters.observe("sandherd_request_seconds", time.monotonic() - begun, request=request_type)
            return reply.model_dump_json(exclude_none=True).encode()

        return answer


async def _reply(request_type: str, handle: Answerer, body: bytes, names: Mapping[str, str]) -> Reply[Any]:
    try:
        asked = _asked(request_type, body, names)
        with traces.span(spans.ANSWER, values={spans.TYPE: request_type}):
            return Reply[Any](ok=await handle(asked))
    except ContractError as error:
        return Reply[Any](error=error.problem)
    except Exception as error:  # noqa: BLE001  # answered as a refusal and logged: an asker must not wait for nothing
        _log.error("could not answer", request=request_type, exc_info=error)
        return Reply[Any](error=_internal(error))


def _asked(request_type: str, body: bytes, names: Mapping[str, str]) -> Asked[Any]:
    """The question, read as strictly as its schema says. Raises `ContractError`, for the asker's faults only."""
    try:
        for field, name in names.items():
            safe_name(name, field)
        return Asked(REQUESTS[request_type].model_validate_json(body, strict=True), names)
    except UnsafeNameError as error:
        raise ContractError(Code.UNSAFE_NAME, str(error), field=error.field) from None
    except ValidationError as error:
        raise ContractError.from_validation(error) from None


def _internal(error: Exception) -> Problem:
    return Problem(code=Code.INTERNAL, message=f"{type(error).__name__} in the service; its log says more")
