"""Traces: W3C trace context on every envelope, and spans if a collector is set."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from sandherd.contracts.errors import ContractError
from sandherd.telemetry import spans, traceparents
from sandherd.telemetry.spans import SpanRow, Values

if TYPE_CHECKING:
    from sandherd.telemetry.finished_spans import FinishedSpans

SCOPE: Final = "sandherd"
"""The instrumentation scope of all spans."""
_KINDS: Final = {kind: SpanKind[kind.name] for kind in spans.SpanKind}
next_context: Final[ContextVar[traceparents.TraceContext | None]] = ContextVar("next_context", default=None)
"""The ids of the next span, if they are not random; `otlp_exporter` assigns them."""


def current_traceparent() -> str | None:
    """The trace context of the current asyncio task, for an envelope."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


@lru_cache(maxsize=2)
def _tracer_of(provider: trace.TracerProvider) -> trace.Tracer:
    """The tracer. It is cached, because creating it takes a third of the time of a span."""
    return provider.get_tracer(SCOPE)


def _tracer() -> trace.Tracer:
    return _tracer_of(trace.get_tracer_provider())


def is_exported() -> bool:
    """Whether spans are exported; if not, none need to be created."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


@contextmanager
def span(
    row: SpanRow, traceparent: str | None = None, values: Values | None = None, *, root: bool = False
) -> Iterator[Span]:
    """A span that continues the trace in `traceparent`, or else the trace of the current asyncio task.

    A span that ends with an error has failed. The error's text is not exported, because it may contain values. With
    `root` the span has no parent, for a `traceparent` whose span is never exported.
    """
    started = _start_span(row, traceparent, values or {}, root=root)
    with trace.use_span(started, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield started
        except Exception as error:  # raised again; only its kind is added to the span
            started.set_status(Status(StatusCode.ERROR))
            started.set_attribute(spans.ERROR_TYPE.name, error_type_of(error))
            raise


def error_type_of(error: Exception) -> str:
    """The code of a refusal; else the name of the exception's class."""
    return error.problem.code.value if isinstance(error, ContractError) else type(error).__name__


def _start_span(row: SpanRow, traceparent: str | None, values: Values, *, root: bool) -> Span:
    token = next_context.set(traceparents.read(traceparents.new_span(traceparent)) if root and traceparent else None)
    try:
        return _tracer().start_span(
            row.named(values),
            Context() if root else _remote(traceparent),
            kind=_KINDS[row.kind],
            attributes=row.attributes_of(values),
        )
    finally:
        next_context.reset(token)


def record(
    row: SpanRow, traceparent: str | None, begun: datetime, ended: datetime, values: Values, *, own: str | None = None
) -> None:
    """Export a span of something that happened elsewhere or earlier, between two times.

    A sandbox connects only to the broker, so the service that receives its worker's events exports the spans of what
    the worker did. `own` is the traceparent with the span's id, if other spans already refer to that id.
    """
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        return
    times = _nanoseconds(begun), _nanoseconds(max(begun, ended))
    failed = values.get(spans.ERROR_TYPE) is not None
    # Read by name, because only services that export spans import the SDK, and so the class with this attribute.
    finished: FinishedSpans | None = getattr(provider, "finished_spans", None)
    if finished is None:
        _record_started(row, traceparent, times, values, own, failed=failed)
        return
    parent, context = traceparents.read(traceparent), traceparents.read(own)
    kind, attributes = _KINDS[row.kind], row.attributes_of(values)
    finished.export(row.named(values), kind, times, attributes, parent=parent, own=context, failed=failed)


def _record_started(
    row: SpanRow, traceparent: str | None, times: tuple[int, int], values: Values, own: str | None, *, failed: bool
) -> None:
    """Export the span as a span of the SDK, for samplers that need one."""
    token = next_context.set(traceparents.read(own))
    try:
        emitted = _tracer().start_span(
            row.named(values),
            _remote(traceparent) or Context(),
            kind=_KINDS[row.kind],
            attributes=row.attributes_of(values),
            start_time=times[0],
        )
    finally:
        next_context.reset(token)
    if failed:
        emitted.set_status(Status(StatusCode.ERROR))
    emitted.end(times[1])


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000) * 1000


def _remote(traceparent: str | None) -> Context | None:
    parent = traceparents.read(traceparent)
    if parent is None:
        return None
    context = SpanContext(parent.trace, parent.span, is_remote=True, trace_flags=TraceFlags(parent.flags))
    return trace.set_span_in_context(NonRecordingSpan(context))
