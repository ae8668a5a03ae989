"""What every service is made of: a connection, consumers, answers, background work, and a window to look in by.

FastStream carries the requests and the HTTP side; durable consumption is `bus.consuming`, for the reasons given there.
"""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import uvicorn
import uvloop
from faststream.asgi import AsgiFastStream, AsgiResponse, get
from faststream.nats import NatsBroker
from faststream.nats.message import NatsMessage
from nats.aio.client import Client
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, make_asgi_app
from pydantic import BaseModel, ValidationError

from sandherd.bus import consuming
from sandherd.bus.connection import Bus, Identity, Watch
from sandherd.bus.consuming import Delivery, Handler, Outcome
from sandherd.bus.health import Health
from sandherd.bus.requeue import requeue
from sandherd.bus.together import end
from sandherd.contracts.errors import Code, ContractError, Problem
from sandherd.contracts.names import UnsafeNameError, new_uuid, safe_name
from sandherd.contracts.requests import REQUESTS, Reply, Request
from sandherd.contracts.subjects import BY_NAME, Principal
from sandherd.settings import Settings, load
from sandherd.telemetry import logs, traces
from sandherd.telemetry.metrics import Meters

RequestT = TypeVar("RequestT", bound=Request[Any])
Run = Callable[[], Awaitable[None]]
_log: Final = logs.get("service")


class ServiceFailedError(Exception):
    """A part that must live has ended; the service stops so that it is started anew."""


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


class Service:
    """One service: say what it consumes, answers and does, then `run()` it."""

    def __init__(self, principal: Principal, settings: Settings) -> None:
        self.principal = principal
        self.settings = settings
        self.instance = str(new_uuid())
        self.health = Health()
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self.meters = Meters(self.registry)
        self.http_port = 0
        self.bus: Bus
        self._runs: dict[str, Run] = {}
        self._answers: dict[str, Answerer] = {}
        self._failure: asyncio.Future[None] | None = None

    def consume(self, consumer: str, handle: Handler, *, concurrency: int = 1) -> None:
        """Hand each message of a durable consumer to `handle`."""
        self.background(
            f"consumer {consumer}",
            lambda: consuming.consume(
                self.bus,
                consumer,
                self._timed(consumer, handle),
                health=self.health,
                concurrency=concurrency,
                counted=self._count_outcome,
            ),
        )

    def consume_batches(
        self, consumer: str, handle: consuming.BatchHandler, *, batch: int = 500, in_flight: int = 1
    ) -> None:
        """Hand batches of a durable consumer to `handle`, so many at a time."""
        self.background(
            f"consumer {consumer}",
            lambda: consuming.consume_batches(
                self.bus,
                consumer,
                handle,
                health=self.health,
                batch=batch,
                in_flight=in_flight,
                counted=self._count_outcome,
            ),
        )

    def answer(self, request: type[Request[Any]], handle: Answerer) -> None:
        """Answer a kind of request. What `handle` raises becomes a typed refusal; no asker is left waiting."""
        if request.answered_by != self.principal:
            raise ValueError(f"{request.type} is not for {self.principal}")
        self._answers[request.type] = handle

    def requeues(self, handlers: Mapping[str, Handler]) -> None:
        """Answer this service's `requeue` request: a dead letter goes to the handler of the stream it came from."""

        async def handle(asked: Asked[Any]) -> BaseModel:
            return await requeue(self.bus, self.principal, asked.request.number, handlers)

        self.answer(REQUESTS[f"{self.principal}.requeue"], handle)

    def background(self, name: str, run: Run) -> None:
        """Work that goes on while the service lives. If it ends, the service stops with an error."""
        self._runs[name] = run

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT. Raises `ServiceFailedError` when a part of it ended."""
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with self.running():
            assert self._failure is not None
            stopped = asyncio.create_task(stop.wait())
            stopped.add_done_callback(lambda _task: self._conclude())
            try:
                await self._failure
            finally:
                stopped.cancel()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Service"]:
        """The service, running; for `run()` and for tests."""
        self._failure = asyncio.get_running_loop().create_future()
        async with AsyncExitStack() as stack:
            self.bus = await stack.enter_async_context(self._open_bus())
            self.health.add("broker", lambda: None if self.bus.connected else "no connection")
            broker = self._broker()
            await broker.start()
            await stack.enter_async_context(self._http(broker))
            for name, run in self._runs.items():
                stack.push_async_callback(end, [asyncio.create_task(self._guard(name, run), name=name)])
            _log.info("running", instance=self.instance, http_port=self.http_port)
            yield self
            _log.info("stopping")

    def _open_bus(self) -> AbstractAsyncContextManager[Bus]:
        watch = Watch()
        watch.reconnected = lambda: self.meters.count("sandherd_reconnects_total")
        watch.violated = lambda _what: self.meters.count("sandherd_permission_violations_total")
        watch.closed = lambda: self._fail(ServiceFailedError("the broker closed the connection for good"))
        credentials = self.settings.credentials
        return Bus.open(
            self.settings.nats_url,
            name=self.principal,
            identity=Identity.file(credentials) if credentials else Identity.anonymous(),
            inbox=f"_INBOX_{self.principal}",
            watch=watch,
        )

    async def _guard(self, name: str, run: Run) -> None:
        try:
            await run()
            self._fail(ServiceFailedError(f"{name} has ended"))
        except Exception as error:  # noqa: BLE001  # not swallowed: it ends the service, which says so and is started anew
            _log.error("a part failed", failed=name, exc_info=error)
            self._fail(error)

    def _conclude(self) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    # --- answers -----------------------------------------------------------------------------------------------

    def _broker(self) -> NatsBroker:
        broker = HerdBroker(self.bus)
        for request_type, handle in self._answers.items():
            template = BY_NAME[f"request.{request_type}"].template
            broker.subscriber(template, queue=self.principal)(self._answering(request_type, handle))
        return broker

    def _answering(self, request_type: str, handle: Answerer) -> Callable[[NatsMessage], Awaitable[bytes]]:
        async def answer(message: NatsMessage) -> bytes:
            begun = time.monotonic()
            reply = await self._reply(request_type, handle, message.body, message.path)
            outcome = "ok" if reply.error is None else reply.error.code.value
            self.meters.count("sandherd_requests_total", request=request_type, outcome=outcome)
            self.meters.observe("sandherd_request_seconds", time.monotonic() - begun, request=request_type)
            return reply.model_dump_json(exclude_none=True).encode()

        return answer

    async def _reply(self, request_type: str, handle: Answerer, body: bytes, names: Mapping[str, str]) -> Reply[Any]:
        try:
            asked = _asked(request_type, body, names)
            with traces.span(f"answer {request_type}"):
                return Reply[Any](ok=await handle(asked))
        except ContractError as error:
            return Reply[Any](error=error.problem)
        except Exception as error:  # noqa: BLE001  # answered as a refusal and logged: an asker must not wait for nothing
            _log.error("could not answer", request=request_type, exc_info=error)
            return Reply[Any](error=_internal(error))

    # --- the window --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _http(self, broker: NatsBroker) -> AsyncIterator[None]:
        app = AsgiFastStream(
            broker,
            asgi_routes=[
                ("/metrics", make_asgi_app(self.registry)),
                ("/healthz", get(self._healthz)),
                ("/readyz", get(self._readyz)),
            ],
        )
        server = _QuietServer(
            uvicorn.Config(
                app,
                host=self.settings.http_host,
                port=self.settings.http_port,
                lifespan="off",
                log_config=None,
                access_log=False,
            )
        )
        serving = asyncio.create_task(server.serve(), name="http")
        while not server.started:
            if serving.done():
                raise ServiceFailedError(f"no HTTP on {self.settings.http_host}:{self.settings.http_port}")
            await asyncio.sleep(0.005)
        self._publish_port(server)
        try:
            yield
        finally:
            server.should_exit = True
            await serving

    def _publish_port(self, server: uvicorn.Server) -> None:
        self.http_port = server.servers[0].sockets[0].getsockname()[1]
        if self.settings.http_port_file is not None:
            self.settings.http_port_file.write_text(str(self.http_port))

    async def _healthz(self, _scope: Any) -> AsgiResponse:
        """Alive: the event loop turns."""
        return AsgiResponse(b"ok\n", 200)

    async def _readyz(self, _scope: Any) -> AsgiResponse:
        """Ready: every part that the work rests on is well; the body names each."""
        parts = self.health.parts()
        ready = all(state == "ok" for state in parts.values())
        self.meters.set("sandherd_ready", float(ready))
        body = "".join(f"{name}: {state}\n" for name, state in parts.items())
        return AsgiResponse(body.encode(), 200 if ready else 503)

    # --- counting ----------------------------------------------------------------------------------------------

    def _timed(self, consumer: str, handle: Handler) -> Handler:
        async def timed(delivery: Delivery) -> Outcome:
            begun = time.monotonic()
            try:
                return await handle(delivery)
            finally:
                self.meters.observe("sandherd_handler_seconds", time.monotonic() - begun, consumer=consumer)

        return timed

    def _count_outcome(self, consumer: str, outcome: Outcome, amount: int) -> None:
        name = type(outcome).__name__.lower()
        self.meters.count("sandherd_deliveries_total", amount, consumer=consumer, outcome=name)
        if isinstance(outcome, consuming.Dead):
            self.meters.count("sandherd_dead_letters_total", consumer=consumer, code=outcome.problem.code)


class _QuietServer(uvicorn.Server):
    """uvicorn without its own signal handling: the service has one."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


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


def serve(principal: Principal, compose: Callable[[Settings], Service]) -> None:
    """The main program of a service: settings, logs, traces, then `run()`. Exit status 1 when it failed."""
    settings = load().settings
    logs.configure(principal, settings.log_level)
    traces.configure(principal, settings.otlp_endpoint)
    try:
        uvloop.run(compose(settings).run())
    finally:
        traces.flush()
