"""Traces: W3C trace context on every envelope, and spans where a collector is set."""

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags, TraceState
from opentelemetry.util.types import AttributeValue

from sandherd.telemetry import logs

_TRACEPARENT: Final = re.compile(r"^[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$")
_log: Final = logs.get("traces")


def configure(service: str, endpoint: str | None) -> None:
    """Export this process's spans to an OTLP/HTTP collector, if there is one. One that is down costs nothing."""
    if not endpoint:
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": f"sandherd-{service}"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")))
    trace.set_tracer_provider(provider)
    _log.info("traces are exported")


def flush() -> None:
    """Send what is left; before the process ends."""
    provider = trace.get_tracer_provider()
    shutdown = getattr(provider, "shutdown", None)
    if shutdown is not None:
        shutdown()


def new_traceparent() -> str:
    """A new trace, for where none has begun (W3C Trace Context, level 1)."""
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


def current_traceparent() -> str | None:
    """The trace that this task is in, as it goes into an envelope."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


@contextmanager
def span(name: str, traceparent: str | None = None, **attributes: AttributeValue) -> Iterator[Span]:
    """A span that goes on with the trace in `traceparent`, or with this task's own."""
    context = _remote(traceparent)
    tracer = trace.get_tracer("sandherd")
    with tracer.start_as_current_span(name, context=context, attributes=attributes) as started:
        yield started


def record(name: str, traceparent: str | None, begun: datetime, ended: datetime, **attributes: AttributeValue) -> None:
    """A span of something that went on elsewhere, between two times.

    A sandbox speaks to nobody but the broker, so what its worker did is told to the collector by the service that
    hears of it.
    """
    tracer = trace.get_tracer("sandherd")
    told = tracer.start_span(name, _remote(traceparent), attributes=attributes, start_time=_nanoseconds(begun))
    told.end(_nanoseconds(max(begun, ended)))


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000) * 1000


def _remote(traceparent: str | None) -> Context | None:
    match = _TRACEPARENT.match(traceparent or "")
    if match is None:
        return None
    trace_id, span_id, flags = (int(group, 16) for group in match.groups())
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags), trace_state=TraceState())
    return trace.set_span_in_context(NonRecordingSpan(context))
