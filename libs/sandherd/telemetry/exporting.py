"""What goes to an OTLP collector: spans as they end, and every metric now and then. Prometheus may look at any time.

A collector that is down or hangs costs nothing: what is exported waits in a queue of bounded length, threads of their
own send it, what does not fit is given up and counted, and the end of a process waits for it no longer than `LAST`.
"""

import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from sandherd.telemetry import logs
from sandherd.telemetry.points import Points
from sandherd.telemetry.traces import given_context

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from sandherd.telemetry.meters import Meters

LAST: Final = 2.0
"""So many seconds the end of a process waits for the collector to take what is left."""
_TIMEOUT: Final = 5.0
_EVERY: Final = 60_000
_WAITING: Final = 2048
"""So many spans wait for the collector at the most; of more the oldest are given up."""
_BATCH: Final = 512
_SIGNALS: Final = ("traces", "metrics")
_log: Final = logs.get("exporting")


class Exporting:
    """The exporters of one process."""

    def __init__(self, service: str, endpoint: str, registry: "CollectorRegistry", meters: "Meters") -> None:
        # It would say of every try that it failed; `_Toll` says once that the collector is away, and that it is back.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        base, toll, timeout = endpoint.rstrip("/"), _Toll(meters), _timeout()
        resource = Resource.create({"service.name": f"sandherd-{service}"})
        self._provider = TracerProvider(resource=resource, id_generator=_Numbers(), shutdown_on_exit=False)
        room = _Room(_number("OTEL_BSP_MAX_QUEUE_SIZE", _WAITING), toll)
        spans = _Counted(OTLPSpanExporter(endpoint=f"{base}/v1/traces", timeout=timeout), room, toll)
        self._provider.add_span_processor(_Queue(spans, room))
        self._metrics = _Pushing(
            OTLPMetricExporter(endpoint=f"{base}/v1/metrics", timeout=timeout), Points(registry, resource), toll
        )
        trace.set_tracer_provider(self._provider)
        self._metrics.start()
        _log.info("traces and metrics are exported")

    def stop(self) -> None:
        """Send what is left, as far as the collector takes it in time; before the process ends."""
        until = time.monotonic() + LAST
        self._metrics.ending.set()
        ending = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        ending.start()
        for thread in (ending, self._metrics):
            thread.join(max(0.0, until - time.monotonic()))


def _timeout() -> float | None:
    """In seconds; None leaves it to OpenTelemetry to read its own variable."""
    return None if "OTEL_EXPORTER_OTLP_TIMEOUT" in os.environ else _TIMEOUT


def _number(name: str, usual: int) -> int:
    """One of OpenTelemetry's variables; what is no number above 0 is not there."""
    given = os.environ.get(name, "")
    return int(given) if given.isdigit() and int(given) else usual


class _Numbers(RandomIdGenerator):
    """Chance, unless a span's number was given out before it is told."""

    def generate_span_id(self) -> int:
        given = given_context.get()
        return given.span if given else super().generate_span_id()

    def generate_trace_id(self) -> int:
        given = given_context.get()
        return given.trace if given else super().generate_trace_id()


class _Toll:
    """Counts what was taken and what was given up, and says when that changes."""

    def __init__(self, meters: "Meters") -> None:
        self._meters = meters
        self._lock = threading.Lock()
        # Of each signal: many a collector takes one alone, and that is no news each time.
        self._taken = dict.fromkeys(_SIGNALS, True)
        for signal in _SIGNALS:
            for outcome in ("sent", "lost"):  # made here: two threads must not make them at once
                self._meters.count("sandherd_exports_total", 0, signal=signal, outcome=outcome)

    def count(self, signal: str, amount: int, *, taken: bool) -> None:
        """So many were taken, or given up."""
        self._meters.count("sandherd_exports_total", amount, signal=signal, outcome="sent" if taken else "lost")

    def note(self, signal: str, amount: int, *, taken: bool) -> None:
        """So many were taken, or given up; what that says of the collector is said if it is new."""
        self.count(signal, amount, taken=taken)
        with self._lock:
            before = all(self._taken.values())
            self._taken[signal] = taken
            after = all(self._taken.values())
        if after and not before:
            _log.info("the collector takes it again")
        elif before and not after:
            _log.warning("the collector does not take what is exported; nothing else waits for it", signal=signal)


class _Room:
    """How many spans wait: the SDK lets the oldest go without a word when there are too many."""

    def __init__(self, size: int, toll: _Toll) -> None:
        self.size = size
        self._toll = toll
        self._waiting = 0
        self._lock = threading.Lock()

    def come(self) -> None:
        """One more waits, or takes the place of the oldest."""
        with self._lock:
            full = self._waiting == self.size
            self._waiting += not full
        if full:
            self._toll.count("traces", 1, taken=False)

    def go(self, amount: int) -> None:
        """So many were taken out."""
        with self._lock:
            self._waiting = max(0, self._waiting - amount)


class _Queue(BatchSpanProcessor):
    """The SDK's queue, told of what comes."""

    def __init__(self, exporter: SpanExporter, room: _Room) -> None:
        batch = min(_number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", _BATCH), room.size)
        super().__init__(exporter, max_queue_size=room.size, max_export_batch_size=batch)
        self._room = room

    def on_end(self, span: ReadableSpan) -> None:
        """It waits from now on."""
        if span.context is not None and span.context.trace_flags.sampled:
            self._room.come()
        super().on_end(span)


class _Counted(SpanExporter):
    """An exporter of spans whose success is counted."""

    def __init__(self, exporter: SpanExporter, room: _Room, toll: _Toll) -> None:
        self._exporter = exporter
        self._room = room
        self._toll = toll

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export these."""
        self._room.go(len(spans))
        result = self._exporter.export(spans)
        self._toll.note("traces", len(spans), taken=result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        """Export no more."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is kept here."""
        return self._exporter.force_flush(timeout_millis)


class _Pushing(threading.Thread):
    """Sends every metric now and then, and a last time at the end."""

    def __init__(self, exporter: OTLPMetricExporter, points: Points, toll: _Toll) -> None:
        super().__init__(name="metrics", daemon=True)
        self._exporter = exporter
        self._points = points
        self._toll = toll
        self._every = _number("OTEL_METRIC_EXPORT_INTERVAL", _EVERY) / 1000
        self.ending = threading.Event()

    def run(self) -> None:
        """Until the end."""
        while not self.ending.wait(self._every):
            self._push()
        self._push()

    def _push(self) -> None:
        try:
            data, amount = self._points.read()
            result = self._exporter.export(data)
        except Exception as error:  # noqa: BLE001  # the next time it may do; telemetry ends no service
            _log.warning("metrics were not exported", error=repr(error))
            return
        self._toll.note("metrics", amount, taken=result is MetricExportResult.SUCCESS)
