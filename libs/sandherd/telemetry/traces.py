"""Traces: W3C trace context on every envelope, and spans where a collector is set."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from sandherd.telemetry import spans, traceparents
from sandherd.telemetry.spans import SpanRow, Values

_KINDS: Final = {kind: SpanKind[kind.name] for kind in spans.Kind}
given_context: Final[ContextVar[traceparents.Context | None]] = ContextVar("given_context", default=None)
"""The numbers that the next span gets, if they are not chance; `exporting` gives them out."""


def current_traceparent() -> str | None:
    """The trace that this task is in, as it goes into an envelope."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


@lru_cache(maxsize=2)
def _tracer_of(provider: trace.TracerProvider) -> trace.Tracer:
    """Kept: to ask for it anew costs a third of a span."""
    return provider.get_tracer("sandherd")


def _tracer() -> trace.Tracer:
    return _tracer_of(trace.get_tracer_provider())


def is_exported() -> bool:
    """Whether anybody takes spans: if not, one need not be made."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


@contextmanager
def span(row: SpanRow, traceparent: str | None = None, values: Values | None = None) -> Iterator[Span]:
    """A span that goes on with the trace in `traceparent`, or with this task's own.

    One that an error ends has failed. What the error says is not told: it may hold what it broke over.
    """
    said = values or {}
    with _tracer().start_as_current_span(
        row.named(said),
        context=_remote(traceparent),
        kind=_KINDS[row.kind],
        attributes=row.attributes_of(said),
        record_exception=False,
        set_status_on_exception=False,
    ) as started:
        try:
            yield started
        except Exception:
            started.set_status(Status(StatusCode.ERROR))
            raise


def record(
    row: SpanRow, traceparent: str | None, begun: datetime, ended: datetime, values: Values, *, own: str | None = None
) -> None:
    """A span of something that went on elsewhere or long ago, between two times.

    A sandbox speaks to nobody but the broker, so what its worker did is told to the collector by the service that
    hears of it. `own` is the number that it was to have, where others have named it already.
    """
    if not is_exported():
        return
    token = given_context.set(traceparents.read(own))
    try:
        told = _tracer().start_span(
            row.named(values),
            _remote(traceparent) or Context(),
            kind=_KINDS[row.kind],
            attributes=row.attributes_of(values),
            start_time=_nanoseconds(begun),
        )
    finally:
        given_context.reset(token)
    if values.get(spans.ERROR_TYPE) is not None:
        told.set_status(Status(StatusCode.ERROR))
    told.end(_nanoseconds(max(begun, ended)))


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000) * 1000


def _remote(traceparent: str | None) -> Context | None:
    found = traceparents.read(traceparent)
    if found is None:
        return None
    context = SpanContext(found.trace, found.span, is_remote=True, trace_flags=TraceFlags(found.flags))
    return trace.set_span_in_context(NonRecordingSpan(context))
