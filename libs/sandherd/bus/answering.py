"""Answering requests: FastStream carries them, and every asker gets an answer, if only a typed refusal."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from faststream.nats import NatsBroker
from faststream.nats.message import NatsMessage
from nats.aio.client import Client
from pydantic import BaseModel, ValidationError

from sandherd.bus.connection import Bus
from sandherd.bus.request_queue import Lane
from sandherd.bus.request_scheduler import Process, RequestLimits, RequestScheduler
from sandherd.contracts.errors import Code, ContractError, Problem
from sandherd.contracts.names import UnsafeNameError, safe_name
from sandherd.contracts.requests import REQUESTS, Reply, Request
from sandherd.contracts.subjects import BY_NAME, Principal
from sandherd.telemetry import logs, spans, traces
from sandherd.telemetry.meters import Meters

RequestT = TypeVar("RequestT", bound=Request[Any])
_log: Final = logs.get("answering")


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


class Answers:
    """The requests that one service answers."""

    def __init__(self, principal: Principal, meters: Meters, limits: RequestLimits) -> None:
        self._principal = principal
        self._meters = meters
        self._answers: dict[str, tuple[Answerer, Lane]] = {}
        self._scheduler = RequestScheduler(limits, self._count)

    def add(self, request: type[Request[Any]], handle: Answerer, lane: Lane) -> None:
        """Answer a kind of request within the limits of a lane. Raises `ValueError` for another service's kind."""
        if request.answered_by != self._principal:
            raise ValueError(f"{request.type} is not for {self._principal}")
        self._answers[request.type] = handle, lane

    def broker(self, bus: Bus) -> NatsBroker:
        """FastStream's broker with a subscriber for each kind, in the service's queue group; to be started."""
        broker = HerdBroker(bus)
        for request_type, (handle, lane) in self._answers.items():
            template = BY_NAME[f"request.{request_type}"].template
            subscriber = broker.subscriber(template, queue=self._principal, no_reply=True)
            subscriber(self._scheduler.receiver(lane, request_type, _processing(request_type, handle)))
        return broker

    async def close(self) -> None:
        """Answer those who still wait that this replica is ending."""
        await self._scheduler.close()

    def _count(self, request_type: str, reply: Reply[Any], seconds: float) -> None:
        outcome = "ok" if reply.error is None else reply.error.code.value
        self._meters.count("sandherd_requests_total", request=request_type, outcome=outcome)
        self._meters.observe("sandherd_request_seconds", seconds, request=request_type)


def _processing(request_type: str, handle: Answerer) -> Process:
    async def process(message: NatsMessage) -> Reply[Any]:
        return await _reply(request_type, handle, message.body, message.path)

    return process


async def _reply(request_type: str, handle: Answerer, body: bytes, names: Mapping[str, str]) -> Reply[Any]:
    try:
        asked = read_request(request_type, body, names)
        with traces.span(spans.ANSWER, values={spans.TYPE: request_type}):
            return Reply[Any](ok=await handle(asked))
    except ContractError as error:
        return Reply[Any](error=error.problem)
    except Exception as error:  # noqa: BLE001  # answered as a refusal and logged: an asker must not wait for nothing
        _log.error("could not answer", request=request_type, exc_info=error)
        return Reply[Any](error=_internal(error))


def read_request(request_type: str, body: bytes, names: Mapping[str, str]) -> Asked[Any]:
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
