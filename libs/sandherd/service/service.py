"""The base of every service: broker connections, consumers, request handlers, background tasks, and an HTTP server.

FastStream receives the requests and serves HTTP. Durable consumers are read by `bus.consumers`.
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

from sandherd.bus.auth.account_names import api_of
from sandherd.bus.auth.permissions import streams_of
from sandherd.bus.connection import Bus, ConnectionCallbacks, ConnectionIdentity
from sandherd.bus.consumers import consumer as consuming
from sandherd.bus.consumers.consumer import Handler, Outcome
from sandherd.bus.consumers.dead_letters import PROJECT_SHARE
from sandherd.bus.consumers.intake import source_limits
from sandherd.bus.consumers.refused_commands import RefusedCommands
from sandherd.bus.consumers.requeue import requeue
from sandherd.concurrency import cancel_and_wait
from sandherd.contracts.names import new_uuid
from sandherd.contracts.requests.base import Request
from sandherd.contracts.requests.dead_letters import REQUEUES
from sandherd.contracts.streams import CONSUMERS
from sandherd.contracts.subjects import Principal
from sandherd.service.consumer_lag import ConsumerLag
from sandherd.service.diagnostics import Diagnostics
from sandherd.service.http_connections import raise_open_files
from sandherd.service.http_server import ServiceHttpServer
from sandherd.service.request_budget import Budget
from sandherd.service.request_intake import RequestIntake
from sandherd.service.request_queue import RequestLane
from sandherd.service.request_scheduler import RequestLimits
from sandherd.service.request_spans import RequestSpans
from sandherd.service.requests import Answerer, IncomingRequest, RequestRouter
from sandherd.service.storage_watch import StorageWatch
from sandherd.service.stream_usage import StreamUsage
from sandherd.settings import Settings, load
from sandherd.telemetry import logs
from sandherd.telemetry.metrics import GROUPS

__all__ = ["Answerer", "IncomingRequest", "RequestLane", "Service", "ServiceFailedError", "serve"]

Run = Callable[[], Awaitable[None]]
"""A task that runs as long as the service."""
ArgumentT = TypeVar("ArgumentT")
ResultT = TypeVar("ResultT")
_log: Final = logs.get("service")


class ServiceFailedError(Exception):
    """A required part of the service has ended. The service stops, so that it is restarted."""


class Service:
    """One service: register its consumers, request handlers and background tasks, then `run()` it."""

    def __init__(self, principal: Principal, settings: Settings) -> None:
        self.principal = principal
        self.settings = settings
        self.instance = str(new_uuid())
        self._http_server = ServiceHttpServer()
        self.health = self._http_server.health
        self.meters = self._http_server.meters
        self.registry = self._http_server.registry
        self.bus: Bus
        self._incoming: Bus
        """The connection on which requests are received and replied to."""
        self._runs: dict[str, Run] = {}
        self._answers = RequestRouter(
            principal, self.meters, _request_limits(settings), RequestSpans(settings.traced_requests)
        )
        self._intake = RequestIntake(self.meters)
        self.background("refusals", lambda: self._intake.run(self._incoming))
        self._failure: asyncio.Future[None] | None = None
        self.meters.expose((*GROUPS["every service"], *GROUPS[principal]))
        self._measure_streams()

    def _measure_streams(self) -> None:
        fullness = StreamUsage(streams_of(self.principal), self.meters)
        self.health.add_warning("streams", fullness.warning)
        # Only the spawner measures the disk: other services may run on machines without a home.
        storage = StorageWatch(
            self.principal, self.settings.home, self.meters, measured=self.principal is Principal.SPAWNER
        )
        self.health.add("storage", storage.problem)
        self.health.add_warning("disk", storage.warning)
        self.background("storage", lambda: storage.watch(self.bus))
        self.background("fullness", lambda: fullness.watch(self.bus))
        backlog = ConsumerLag([row for row in CONSUMERS if row.service is self.principal], self.meters)
        self.background("backlog", lambda: backlog.watch(self.bus))
        self.examining = Diagnostics(self, backlog)
        self.answer(self.examining.request, self.examining.answer)

    def consume(
        self, consumer: str, handle: Handler, *, concurrency: int = 1, skip: consuming.Skip | None = None
    ) -> None:
        """Pass the messages of a durable consumer to `handle`, in order per entity, except those `skip` selects."""
        self.background(
            f"consumer {consumer}",
            lambda: consuming.consume(
                self.bus,
                consumer,
                self._with_duration_metric(consumer, handle),
                health=self.health,
                concurrency=concurrency,
                counted=self._count_outcome,
                limits=source_limits(self.settings, self.meters),
                skip=skip,
            ),
        )

    def consume_commands(self, consumer: str, handle: Handler, *, concurrency: int = 1) -> None:
        """Like `consume`. If a command becomes a dead letter, an event about it is published in its project."""
        refused = RefusedCommands(self.settings.dead_letters_per_minute * PROJECT_SHARE)

        async def handle_command(delivery: consuming.Delivery) -> Outcome:
            return await refused.handle(self.bus, handle, delivery)

        self.consume(consumer, handle_command, concurrency=concurrency)

    def consume_batches(
        self, consumer: str, handle: consuming.BatchHandler, *, batch: int = 500, in_flight: int = 1
    ) -> None:
        """Pass batches of up to `batch` messages of a durable consumer to `handle`, up to `in_flight` at a time."""
        self.background(
            f"consumer {consumer}",
            lambda: consuming.consume_batches(
                self.bus,
                consumer,
                self._with_duration_metric(consumer, handle),
                health=self.health,
                batch=batch,
                in_flight=in_flight,
                counted=self._count_outcome,
                limits=source_limits(self.settings, self.meters),
            ),
        )

    def answer(
        self, request: type[Request[Any]], handle: Answerer, *, at_once: int = 1, lane: RequestLane | None = None
    ) -> None:
        """Register the handler of a kind of request, in `lane`, or in a new lane with `at_once` concurrent requests.

        Projects take turns in a lane. An exception of `handle` becomes a typed refusal, so each requester gets a reply.
        """
        self._answers.add(request, handle, lane or RequestLane.of_kind(request.type, at_once))

    @asynccontextmanager
    async def answering(
        self, answers: Mapping[type[Request[Any]], Answerer], *, by_each: bool = False
    ) -> AsyncIterator[None]:
        """Reply to these kinds of request until the block ends. With `by_each` every replica receives each request.

        Handlers then raise `OtherReplicaRepliesError` where another replica replies.
        """
        spans = RequestSpans(self.settings.traced_requests)
        router = RequestRouter(self.principal, self.meters, _request_limits(self.settings), spans)
        for request, handle in answers.items():
            router.add(request, handle, RequestLane.of_kind(request.type, 1))
        broker = router.broker(self._incoming, by_each=by_each)
        await broker.start()
        try:
            yield
        finally:
            for subscriber in broker.subscribers:
                await subscriber.stop()
            await router.close()

    def requeues(self, handlers: Mapping[str, Handler]) -> None:
        """Register this service's `requeue` request. `handlers` are the handlers of dead letters, by their stream."""

        async def handle(incoming: IncomingRequest[Any]) -> BaseModel:
            return await requeue(self.bus, self.principal, incoming.request, incoming.project, handlers)

        self.answer(REQUEUES[self.principal], handle)

    def background(self, name: str, run: Run) -> None:
        """Register a task that has to run as long as the service. If it ends, the service stops with an error."""
        self._runs[name] = run

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT. Raises the error of a failed part, or `ServiceFailedError` if a part ended."""
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with self.running():
            assert self._failure is not None
            stopped = asyncio.create_task(stop.wait())
            stopped.add_done_callback(lambda _task: self._end_run())
            try:
                await self._failure
            finally:
                stopped.cancel()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Service"]:
        """Run the service until the block ends. Used by `run()` and by tests."""
        self._failure = asyncio.get_running_loop().create_future()
        async with AsyncExitStack() as stack:
            self.bus = await stack.enter_async_context(self._open_bus(self.principal))
            # Requests have a separate connection, so that a flood of them does not delay acknowledgements and leases.
            self._incoming = await stack.enter_async_context(self._open_bus(f"{self.principal}-requests"))
            self._incoming.client.admits = self._intake.admits
            self.health.add("broker", lambda: None if self._is_connected else "no connection")
            self.meters.watch("sandherd_connected", lambda: self._is_connected)
            broker = self._answers.broker(self._incoming)
            await broker.start()
            stack.push_async_callback(self._answers.close)
            await stack.enter_async_context(self._open_http_server(broker))
            for name, run in self._runs.items():
                stack.push_async_callback(cancel_and_wait, [asyncio.create_task(self._guard(name, run), name=name)])
            _log.info("service running", instance=self.instance, http_port=self.http_port)
            yield self
            _log.info("service stopping")

    @property
    def _is_connected(self) -> bool:
        return self.bus.connected and self._incoming.connected

    @property
    def http_port(self) -> int:
        """The port of the HTTP server, while the service runs."""
        return self._http_server.port

    def _open_http_server(self, broker: NatsBroker) -> AbstractAsyncContextManager[None]:
        settings = self.settings
        return self._http_server.open(broker, settings.http_host, settings.http_port, settings.http_port_file)

    def _open_bus(self, name: str) -> AbstractAsyncContextManager[Bus]:
        callbacks = ConnectionCallbacks()
        callbacks.reconnected = lambda: self.meters.count("sandherd_reconnects_total")
        callbacks.violated = lambda _text: self.meters.count("sandherd_permission_violations_total")
        callbacks.closed = lambda: self._fail(ServiceFailedError("the broker closed the connection permanently"))
        credentials = self.settings.credentials
        return Bus.open(
            self.settings.nats_url,
            name=name,
            identity=ConnectionIdentity.file(credentials) if credentials else ConnectionIdentity.anonymous(),
            inbox=f"_INBOX_{self.principal}",
            watch=callbacks,
            api=api_of(self.principal),
        )

    async def _guard(self, name: str, run: Run) -> None:
        """Run a part of the service. If it ends or fails, the service fails."""
        try:
            await run()
            self._fail(ServiceFailedError(f"{name} ended unexpectedly"))
        except Exception as error:  # noqa: BLE001  # not swallowed: it is logged and ends the service
            _log.error("part of the service failed", failed=name, exc_info=error)
            self._fail(error)

    def _end_run(self) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    # --- counting ----------------------------------------------------------------------------------------------

    def _with_duration_metric(
        self, consumer: str, handle: Callable[[ArgumentT], Awaitable[ResultT]]
    ) -> Callable[[ArgumentT], Awaitable[ResultT]]:
        async def measured(argument: ArgumentT) -> ResultT:
            begun = time.monotonic()
            try:
                return await handle(argument)
            finally:
                self.meters.observe("sandherd_handler_seconds", time.monotonic() - begun, consumer=consumer)

        return measured

    def _count_outcome(self, consumer: str, outcome: Outcome, amount: int) -> None:
        name = type(outcome).__name__.lower()
        self.meters.count("sandherd_deliveries_total", amount, consumer=consumer, outcome=name)
        if isinstance(outcome, consuming.Dead):
            self.meters.count("sandherd_dead_letters_total", consumer=consumer, code=outcome.problem.code)


def _request_limits(settings: Settings) -> RequestLimits:
    return RequestLimits(settings.requests_waiting, Budget(settings.request_seconds, settings.request_rows))


def serve(principal: Principal, compose: Callable[[Settings], Service]) -> None:
    """The main program of a service: create it from the settings by `compose`, and run it. Raises what `run` raises."""
    settings = load().settings
    logs.configure(principal, settings.log_level)
    raise_open_files()
    service = compose(settings)
    with _telemetry_export(service):
        uvloop.run(service.run())


@contextmanager
def _telemetry_export(service: Service) -> Iterator[None]:
    """Export telemetry to the OTLP collector until the block ends, if one is configured."""
    endpoint = service.settings.otlp_endpoint
    if not endpoint:
        yield
        return
    from sandherd.telemetry.otlp_exporter import OtlpExporter  # needs some MiB, and only exports

    exporting = OtlpExporter(service.principal, endpoint, service.registry, service.meters)
    try:
        yield
    finally:
        exporting.stop()
