"""Export to an OTLP collector: spans as they end, and all metrics periodically. Prometheus can scrape at any time.

A collector that is down or hangs delays nothing: exports wait in a queue of limited length, and separate threads send
them. What does not fit is dropped and counted. The end of a process waits for them for at most `LAST_SECONDS`.
"""

import logging
import os
import threading
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import DEFAULT_ON

from sandherd.telemetry import logs
from sandherd.telemetry.finished_spans import FinishedSpans
from sandherd.telemetry.otlp_points import Points
from sandherd.telemetry.traces import SCOPE, next_context

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from sandherd.telemetry.meters import Meters

LAST_SECONDS: Final = 2.0
"""How long the end of a process waits for the last export, in seconds."""
_TIMEOUT_SECONDS: Final = 5.0
_INTERVAL_MS: Final = 60_000
_MAX_WAITING_SPANS: Final = 2048
"""Maximum number of spans that wait for the collector. Above it, the oldest spans are dropped."""
_BATCH_SIZE: Final = 512
_SIGNALS: Final = ("traces", "metrics")
_log: Final = logs.get("otlp_exporter")


class OtlpExporter:
    """The exporters of one process."""

    def __init__(self, service: str, endpoint: str, registry: "CollectorRegistry", meters: "Meters") -> None:
        # OpenTelemetry would log every failed export. `_ExportCounter` logs only changes of the collector's state.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        base, export_counter, timeout = endpoint.rstrip("/"), _ExportCounter(meters), _timeout()
        resource = Resource.create({"service.name": f"sandherd-{service}", "service.version": version("sandherd")})
        self._provider = _Provider(resource=resource, id_generator=_SpanIds(), shutdown_on_exit=False)
        queue_size = _SpanQueueSize(_number("OTEL_BSP_MAX_QUEUE_SIZE", _MAX_WAITING_SPANS), export_counter)
        spans = _CountedSpanExporter(
            OTLPSpanExporter(endpoint=f"{base}/v1/traces", timeout=timeout), queue_size, export_counter
        )
        self._provider.add_exporting(_Queue(spans, queue_size))
        self._metrics = _MetricsPush(
            OTLPMetricExporter(endpoint=f"{base}/v1/metrics", timeout=timeout),
            Points(registry, resource),
            export_counter,
        )
        trace.set_tracer_provider(self._provider)
        self._metrics.start()
        _log.info("exporting traces and metrics")

    def stop(self) -> None:
        """Send the remaining spans and metrics, for at most `LAST_SECONDS`. Called before the process ends."""
        until = time.monotonic() + LAST_SECONDS
        self._metrics.ending.set()
        ending = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        ending.start()
        for thread in (ending, self._metrics):
            thread.join(max(0.0, until - time.monotonic()))


def _timeout() -> float | None:
    """The timeout in seconds; None if OpenTelemetry's own variable sets it."""
    return None if "OTEL_EXPORTER_OTLP_TIMEOUT" in os.environ else _TIMEOUT_SECONDS


def _number(name: str, default: int) -> int:
    """The value of one of OpenTelemetry's variables; `default` unless it is a number above 0."""
    assigned = os.environ.get(name, "")
    return int(assigned) if assigned.isdigit() and int(assigned) else default


class _Provider(TracerProvider):
    """The SDK's provider. It has `finished_spans` unless its sampler needs spans of the SDK."""

    finished_spans: FinishedSpans | None = None

    def add_exporting(self, queue: "_Queue") -> None:
        """Export spans through this queue."""
        self.add_span_processor(queue)
        disabled = isinstance(self.get_tracer(SCOPE), trace.NoOpTracer)  # by OTEL_SDK_DISABLED
        if self.sampler is DEFAULT_ON and not disabled:
            self.finished_spans = FinishedSpans(queue, self.resource, SCOPE)


class _SpanIds(RandomIdGenerator):
    """Random ids, unless a span's id was assigned before the span is exported."""

    def generate_span_id(self) -> int:
        assigned = next_context.get()
        return assigned.span if assigned else super().generate_span_id()

    def generate_trace_id(self) -> int:
        assigned = next_context.get()
        return assigned.trace if assigned else super().generate_trace_id()


class _ExportCounter:
    """Counts accepted and dropped items, and logs when the collector stops or starts to accept them."""

    def __init__(self, meters: "Meters") -> None:
        self._meters = meters
        self._lock = threading.Lock()
        # By signal, because some collectors accept only one, and this must not be logged each time.
        self._accepted = dict.fromkeys(_SIGNALS, True)
        for signal in _SIGNALS:
            for outcome in ("sent", "lost"):  # created here, so that two threads do not create them at the same time
                self._meters.count("sandherd_exports_total", 0, signal=signal, outcome=outcome)

    def count(self, signal: str, amount: int, *, accepted: bool) -> None:
        """Count `amount` items as accepted, or as dropped."""
        self._meters.count("sandherd_exports_total", amount, signal=signal, outcome="sent" if accepted else "lost")

    def note(self, signal: str, amount: int, *, accepted: bool) -> None:
        """Count `amount` items as accepted, or as dropped, and log a change of the collector's state."""
        self.count(signal, amount, accepted=accepted)
        with self._lock:
            accepted_before = all(self._accepted.values())
            self._accepted[signal] = accepted
            accepted_after = all(self._accepted.values())
        if accepted_after and not accepted_before:
            _log.info("collector accepts exports again")
        elif accepted_before and not accepted_after:
            _log.warning("collector does not accept exports, continuing without it", signal=signal)


class _SpanQueueSize:
    """Counts the spans that wait, because the SDK drops the oldest ones silently when there are too many."""

    def __init__(self, size: int, export_counter: _ExportCounter) -> None:
        self.size = size
        self._export_counter = export_counter
        self._waiting = 0
        self._lock = threading.Lock()

    def add(self) -> None:
        """Count a new waiting span. If the queue is full, the span replaces the oldest one, which counts as dropped."""
        with self._lock:
            full = self._waiting == self.size
            self._waiting += not full
        if full:
            self._export_counter.count("traces", 1, accepted=False)

    def remove(self, amount: int) -> None:
        """Count `amount` spans as removed."""
        with self._lock:
            self._waiting = max(0, self._waiting - amount)


class _Queue(BatchSpanProcessor):
    """The SDK's queue, with its spans counted in a `_SpanQueueSize`."""

    def __init__(self, exporter: SpanExporter, queue_size: _SpanQueueSize) -> None:
        batch = min(_number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", _BATCH_SIZE), queue_size.size)
        super().__init__(exporter, max_queue_size=queue_size.size, max_export_batch_size=batch)
        self._queue_size = queue_size

    def on_end(self, span: ReadableSpan) -> None:
        """Count the span as waiting, and queue it."""
        if span.context is not None and span.context.trace_flags.sampled:
            self._queue_size.add()
        super().on_end(span)


class _CountedSpanExporter(SpanExporter):
    """An exporter of spans whose success is counted."""

    def __init__(self, exporter: SpanExporter, queue_size: _SpanQueueSize, export_counter: _ExportCounter) -> None:
        self._exporter = exporter
        self._queue_size = queue_size
        self._export_counter = export_counter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export spans, and count the result."""
        self._queue_size.remove(len(spans))
        result = self._exporter.export(spans)
        self._export_counter.note("traces", len(spans), accepted=result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        """Shut the exporter down."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the exporter; nothing is buffered here."""
        return self._exporter.force_flush(timeout_millis)


class _MetricsPush(threading.Thread):
    """Sends all metrics periodically, and once at the end."""

    def __init__(self, exporter: OTLPMetricExporter, points: Points, export_counter: _ExportCounter) -> None:
        super().__init__(name="metrics", daemon=True)
        self._exporter = exporter
        self._points = points
        self._export_counter = export_counter
        self._interval_seconds = _number("OTEL_METRIC_EXPORT_INTERVAL", _INTERVAL_MS) / 1000
        self.ending = threading.Event()

    def run(self) -> None:
        """Push until the process ends."""
        while not self.ending.wait(self._interval_seconds):
            self._push()
        self._push()

    def _push(self) -> None:
        try:
            data, amount = self._points.read()
            result = self._exporter.export(data)
        except Exception as error:  # noqa: BLE001  # the next push may succeed; telemetry ends no service
            _log.warning("metrics export failed", error=repr(error))
            return
        self._export_counter.note("metrics", amount, accepted=result is MetricExportResult.SUCCESS)
