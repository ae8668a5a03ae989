"""What every service is made of: a connection, consumers, answers, background work, and a window to look in by.

FastStream carries the requests and the HTTP side; durable consumption is `bus.consuming`, for the reasons given there.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar

import uvloop
from faststream.nats import NatsBroker
from pydantic import BaseModel

from sandherd.bus import consuming
from sandherd.bus.account_names import api_of
from sandherd.bus.answering import Answerer, Answers, Asked
from sandherd.bus.backlog import Backlog
from sandherd.bus.connection import Bus, Identity, Watch
from sandherd.bus.consuming import Handler, Outcome
from sandherd.bus.examining import Examining
from sandherd.bus.fullness import Fullness
from sandherd.bus.http_connections import raise_open_files
from sandherd.bus.permissions import streams_of
from sandherd.bus.request_budget import Budget
from sandherd.bus.request_queue import Lane
from sandherd.bus.request_scheduler import RequestLimits
from sandherd.bus.requeue import requeue
from sandherd.bus.source_limits import source_limits
from sandherd.bus.storage_watch import StorageWatch
from sandherd.bus.together import end
from sandherd.bus.window import Window
from sandherd.contracts.names import new_uuid
from sandherd.contracts.requests import REQUESTS, Request
from sandherd.contracts.streams import CONSUMERS
from sandherd.contracts.subjects import Principal
from sandherd.settings import Settings, load
from sandherd.telemetry import logs
from sandherd.telemetry.metrics import GROUPS

__all__ = ["Answerer", "Asked", "Lane", "Service", "ServiceFailedError", "serve"]

Run = Callable[[], Awaitable[None]]
GivenT = TypeVar("GivenT")
ComesT = TypeVar("ComesT")
_log: Final = logs.get("service")


class ServiceFailedError(Exception):
    """A part that must live has ended; the service stops so that it is started anew."""


class Service:
    """One service: say what it consumes, answers and does, then `run()` it."""

    def __init__(self, principal: Principal, settings: Settings) -> None:
        self.principal = principal
        self.settings = settings
        self.instance = str(new_uuid())
        self._window = Window()
        self.health = self._window.health
        self.meters = self._window.meters
        self.registry = self._window.registry
        self.bus: Bus
        self._runs: dict[str, Run] = {}
        self._answers = Answers(principal, self.meters, _request_limits(settings))
        self._failure: asyncio.Future[None] | None = None
        self.meters.begin((*GROUPS["every service"], *GROUPS[principal]))
        self._measure_streams()

    def _measure_streams(self) -> None:
        fullness = Fullness(streams_of(self.principal), self.meters)
        self.health.remark_on("streams", fullness.remark)
        # Only the spawner has a home with data below it; the others may run where there is none.
        storage = StorageWatch(
            self.principal, self.settings.home, self.meters, measured=self.principal is Principal.SPAWNER
        )
        self.health.add("storage", storage.problem)
        self.health.remark_on("disk", storage.remark)
        self.background("storage", lambda: storage.watch(self.bus))
        self.background("fullness", lambda: fullness.watch(self.bus))
        backlog = Backlog([row for row in CONSUMERS if row.service is self.principal], self.meters)
        self.background("backlog", lambda: backlog.watch(self.bus))
        self.examining = Examining(self, backlog)
        self.answer(self.examining.request, self.examining.answer)

    def consume(
        self, consumer: str, handle: Handler, *, concurrency: int = 1, skip: consuming.Skip | None = None
    ) -> None:
        """Hand each message of a durable consumer to `handle`, those of one entity in order; `skip` says which not."""
        self.background(
            f"consumer {consumer}",
            lambda: consuming.consume(
                self.bus,
                consumer,
                self._timed(consumer, handle),
                health=self.health,
                concurrency=concurrency,
                counted=self._count_outcome,
                limits=source_limits(self.settings, self.meters),
                skip=skip,
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
                self._timed(consumer, handle),
                health=self.health,
                batch=batch,
                in_flight=in_flight,
                counted=self._count_outcome,
                limits=source_limits(self.settings, self.meters),
            ),
        )

    def answer(
        self, request: type[Request[Any]], handle: Answerer, *, at_once: int = 1, lane: Lane | None = None
    ) -> None:
        """Answer a kind of request: in a shared lane, or in its own with `at_once` concurrent requests.

        Projects take turns. What `handle` raises becomes a typed refusal; every requester is answered.
        """
        self._answers.add(request, handle, lane or Lane.of_kind(request.type, at_once))

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
            self.meters.watch("sandherd_connected", lambda: self.bus.connected)
            broker = self._answers.broker(self.bus)
            await broker.start()
            stack.push_async_callback(self._answers.close)
            await stack.enter_async_context(self._open_window(broker))
            for name, run in self._runs.items():
                stack.push_async_callback(end, [asyncio.create_task(self._guard(name, run), name=name)])
            _log.info("running", instance=self.instance, http_port=self.http_port)
            yield self
            _log.info("stopping")

    @property
    def http_port(self) -> int:
        """The port of its HTTP side, while it runs."""
        return self._window.port

    def _open_window(self, broker: NatsBroker) -> AbstractAsyncContextManager[None]:
        settings = self.settings
        return self._window.open(broker, settings.http_host, settings.http_port, settings.http_port_file)

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
            api=api_of(self.principal),
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

    # --- counting ----------------------------------------------------------------------------------------------

    def _timed(
        self, consumer: str, handle: Callable[[GivenT], Awaitable[ComesT]]
    ) -> Callable[[GivenT], Awaitable[ComesT]]:
        async def timed(given: GivenT) -> ComesT:
            begun = time.monotonic()
            try:
                return await handle(given)
            finally:
                self.meters.observe("sandherd_handler_seconds", time.monotonic() - begun, consumer=consumer)

        return timed

    def _count_outcome(self, consumer: str, outcome: Outcome, amount: int) -> None:
        name = type(outcome).__name__.lower()
        self.meters.count("sandherd_deliveries_total", amount, consumer=consumer, outcome=name)
        if isinstance(outcome, consuming.Dead):
            self.meters.count("sandherd_dead_letters_total", consumer=consumer, code=outcome.problem.code)


def _request_limits(settings: Settings) -> RequestLimits:
    return RequestLimits(settings.requests_waiting, Budget(settings.request_seconds, settings.request_rows))


def serve(principal: Principal, compose: Callable[[Settings], Service]) -> None:
    """The main program of a service: set up from the settings, then `run()`. Exit status 1 when it failed."""
    settings = load().settings
    logs.configure(principal, settings.log_level)
    raise_open_files()
    service = compose(settings)
    with _exported(service):
        uvloop.run(service.run())


@contextmanager
def _exported(service: Service) -> Iterator[None]:
    """Meanwhile what it says of itself goes to the collector, if one is set."""
    endpoint = service.settings.otlp_endpoint
    if not endpoint:
        yield
        return
    from sandherd.telemetry.exporting import Exporting  # some MiB that nobody needs who exports nothing

    exporting = Exporting(service.principal, endpoint, service.registry, service.meters)
    try:
        yield
    finally:
        exporting.stop()
