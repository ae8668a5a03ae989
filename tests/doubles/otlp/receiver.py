"""A small OTLP/HTTP collector: it stores what is exported, accepts only traces, hangs, or refuses, as its mood says."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.http_servers import stop_server

Mood = Literal["takes", "traces", "hangs", "refuses"]


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it was received."""

    service: str
    name: str
    trace: str
    span: str
    parent: str
    kind: int
    begun: int
    ended: int
    failed: bool
    attributes: dict[str, Any]
    whole: str
    """The whole span as text."""


@dataclass
class Collector:
    """The received exports, and how the collector responds to exports."""

    endpoint: str = ""
    mood: Mood = "takes"
    requested: int = 0
    held: int = 0
    """The number of requests that hang at this moment."""
    spans: list[ReceivedSpan] = field(default_factory=list)
    points: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    """The latest data points, by service and metric."""
    units: dict[str, str] = field(default_factory=dict)
    versions: dict[str, set[str]] = field(default_factory=dict)
    """The versions of services that have sent data, by signal."""
    release: asyncio.Event = field(default_factory=asyncio.Event)

    def trace(self, trace: str) -> list[ReceivedSpan]:
        """The spans of one trace."""
        return [span for span in self.spans if span.trace == trace]

    def take_spans(self, body: bytes) -> bytes:
        """Store spans."""
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = self._service("traces", resource.resource)
            for scope in resource.scope_spans:
                self.spans += _received_spans(service, scope.spans)
        return bytes(ExportTraceServiceResponse().SerializeToString())

    def take_metrics(self, body: bytes) -> bytes:
        """Store data points."""
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            service = self._service("metrics", resource.resource)
            known = self.points.setdefault(service, {})
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    data = getattr(metric, metric.WhichOneof("data"))
                    known[metric.name] = list(data.data_points)
                    self.units[metric.name] = metric.unit
        return bytes(ExportMetricsServiceResponse().SerializeToString())

    def _service(self, signal: str, resource: Any) -> str:
        attributes = _values(resource.attributes)
        self.versions.setdefault(signal, set()).add(attributes.get("service.version", ""))
        return str(attributes["service.name"])

    async def answer(self, request: web.Request) -> web.Response:
        """Respond to one export as the mood says."""
        self.requested += 1
        body = await request.read()
        if self.mood == "hangs":
            self.held += 1
            try:
                await self.release.wait()
            finally:
                self.held -= 1
        if self.mood == "refuses":
            return web.Response(status=503)
        if self.mood == "traces" and request.path != "/v1/traces":
            return web.Response(status=404)
        takes = {"/v1/traces": self.take_spans, "/v1/metrics": self.take_metrics}
        take = takes.get(request.path)
        reply = take(body) if take else ExportLogsServiceResponse().SerializeToString()
        return web.Response(body=reply, content_type="application/x-protobuf")


def _received_spans(service: str, spans: Any) -> Iterator[ReceivedSpan]:
    for span in spans:
        yield ReceivedSpan(
            service=service,
            name=span.name,
            trace=span.trace_id.hex(),
            span=span.span_id.hex(),
            parent=span.parent_span_id.hex(),
            kind=span.kind,
            begun=span.start_time_unix_nano,
            ended=span.end_time_unix_nano,
            failed=span.status.code == 2,
            attributes=_values(span.attributes),
            whole=str(span),
        )


def _values(attributes: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value") for pair in attributes}


@asynccontextmanager
async def collecting(mood: Mood = "takes") -> AsyncIterator[Collector]:
    """A collector that listens."""
    collector = Collector(mood=mood)
    application = web.Application(client_max_size=64 * 1024 * 1024)
    application.router.add_post("/v1/{signal}", collector.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    collector.endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield collector
    finally:
        collector.release.set()
        await stop_server(runner)
