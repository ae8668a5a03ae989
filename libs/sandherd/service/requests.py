"""Replies to requests. FastStream receives them, and every requester gets a reply or a typed refusal."""

import logging
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from faststream.nats import NatsBroker
from faststream.nats.message import NatsMessage
from nats.aio.client import Client
from pydantic import ValidationError

from sandherd.bus.connection import Bus
from sandherd.contracts.errors import Code, ContractError, Problem
from sandherd.contracts.names import UnsafeNameError, safe_name
from sandherd.contracts.requests.base import REQUESTS, Reply, Request
from sandherd.contracts.subjects import BY_NAME, Principal
from sandherd.service.encoded_answer import AnyAnswer
from sandherd.service.request_queue import RequestLane
from sandherd.service.request_scheduler import Process, RequestLimits, RequestScheduler
from sandherd.service.request_spans import RequestSpans
from sandherd.telemetry import logs
from sandherd.telemetry.meters import Meters

RequestT = TypeVar("RequestT", bound=Request[Any])
MAX_UNREAD: Final = 16_384
"""Maximum number of received requests of one kind that are not decoded yet. Further ones are dropped, so that they
delay no other kind. Their requesters time out, as after a loss of the connection."""
_log: Final = logs.get("requests")


class OtherReplicaRepliesError(Exception):
    """Raised by a handler if another replica replies. It is only for requests that every replica receives."""


@dataclass(frozen=True)
class IncomingRequest(Generic[RequestT]):
    """A request, and the names in its subject, such as project and sandbox. The broker has checked them."""

    request: RequestT
    names: Mapping[str, str]

    @property
    def project(self) -> str:
        """The project that the request is about; `fleet` means all projects."""
        return self.names["project"]


Answerer = Callable[[IncomingRequest[Any]], Awaitable[AnyAnswer]]


class _FastStreamLog:
    """Writes FastStream's log lines to the service's log."""

    def log(self, level: int, msg: Any, /, *, exc_info: Any = None, extra: Any = None, **_rest: Any) -> None:
        _log.log(level, str(msg), exc_info=exc_info, **(extra or {}))


async def _decode(message: NatsMessage) -> NatsMessage:
    return message


class _NoRecorder:
    """Replaces the mock of a subscriber."""


@contextmanager
def _without_mocks() -> Iterator[None]:
    """Create subscribers without mocks, which only FastStream's test brokers use.

    Creating them takes a third of the time of a start. This has no effect if a later version of FastStream has its
    mocks elsewhere.
    """
    recorders: Any = sys.modules.get("faststream._internal.testing.calls")
    original_mock = getattr(recorders, "MagicMock", None)
    if original_mock is None:
        yield
        return
    recorders.MagicMock = _NoRecorder
    try:
        yield
    finally:
        recorders.MagicMock = original_mock


class HerdBroker(NatsBroker):
    """FastStream's broker on the connection of a `Bus`. FastStream's own connection gives up after 60 attempts."""

    def __init__(self, bus: Bus) -> None:
        # Handlers get the raw message. FastStream would use a thread for each typed parameter, and create a pydantic
        # model for each kind of request, which takes a fifth of the CPU time of a service's start.
        super().__init__(
            logger=_FastStreamLog(),
            log_level=logging.DEBUG,
            graceful_timeout=5,
            apply_types=False,
            serializer=None,
            decoder=_decode,
        )
        self._bus = bus

    async def _connect(self) -> Client:
        self.config.connect(self._bus.client)
        return self._bus.client


class RequestRouter:
    """The handlers of the requests to one service, by kind of request."""

    def __init__(self, principal: Principal, meters: Meters, limits: RequestLimits, spans: RequestSpans) -> None:
        self._principal = principal
        self._spans = spans
        self._meters = meters
        self._answers: dict[str, tuple[Answerer, RequestLane]] = {}
        self._scheduler = RequestScheduler(limits, self._count)

    def add(self, request: type[Request[Any]], handle: Answerer, lane: RequestLane) -> None:
        """Register the handler of a kind of request, with its lane. Raises `ValueError` for another service's kind."""
        if request.answered_by != self._principal:
            raise ValueError(f"{request.type} is not a request for {self._principal}")
        self._answers[request.type] = handle, lane

    def broker(self, bus: Bus, *, by_each: bool = False) -> NatsBroker:
        """A FastStream broker with a subscriber for each kind of request. It is not started yet.

        Each request is received by one replica, because all are in one queue group; with `by_each` by every replica.
        """
        queue = "" if by_each else self._principal
        broker = HerdBroker(bus)
        with _without_mocks():
            for request_type, (handle, lane) in self._answers.items():
                template = BY_NAME[f"request.{request_type}"].template
                subscriber = broker.subscriber(template, queue=queue, no_reply=True, pending_msgs_limit=MAX_UNREAD)
                subscriber(self._scheduler.receiver(lane, request_type, self._processing(request_type, handle)))
        return broker

    async def close(self) -> None:
        """Refuse waiting requests, because this replica is shutting down."""
        await self._scheduler.close()

    def _processing(self, request_type: str, handle: Answerer) -> Process:
        async def process(message: NatsMessage) -> Reply[Any] | None:
            return await _reply(request_type, handle, message, self._spans)

        return process

    def _count(self, request_type: str, reply: Reply[Any], seconds: float) -> None:
        outcome = "ok" if reply.error is None else reply.error.code.value
        self._meters.count("sandherd_requests_total", request=request_type, outcome=outcome)
        self._meters.observe("sandherd_request_seconds", seconds, request=request_type)


async def _reply(request_type: str, handle: Answerer, message: NatsMessage, spans: RequestSpans) -> Reply[Any] | None:
    try:
        request = read_request(request_type, message.body, message.path)
        with spans.span(request_type):
            return Reply[Any](ok=await handle(request))
    except OtherReplicaRepliesError:
        return None
    except ContractError as error:
        return Reply[Any](error=error.problem)
    except Exception as error:  # noqa: BLE001  # logged, and a refusal is sent: a requester must not wait for its timeout
        _log.error("request handler failed", request=request_type, exc_info=error)
        return Reply[Any](error=_internal(error))


def read_request(request_type: str, body: bytes, names: Mapping[str, str]) -> IncomingRequest[Any]:
    """The request, validated strictly against its schema. Raises `ContractError` if it is invalid."""
    try:
        for field, name in names.items():
            safe_name(name, field)
        return IncomingRequest(REQUESTS[request_type].model_validate_json(body, strict=True), names)
    except UnsafeNameError as error:
        raise ContractError(Code.UNSAFE_NAME, str(error), field=error.field) from None
    except ValidationError as error:
        raise ContractError.from_validation(error, body) from None


def _internal(error: Exception) -> Problem:
    return Problem(code=Code.INTERNAL, message=f"{type(error).__name__} in the service; see its log")
