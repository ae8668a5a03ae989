"""Exports spans of operations that have already ended, in a third of the time, because it starts no span of the SDK.

Used only with the SDK's default sampler, which exports a span if its parent is exported. Any other sampler decides by
its own rules, for which it needs a span of the SDK.
"""

from collections.abc import Mapping
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from sandherd.telemetry.spans import Value
from sandherd.telemetry.traceparents import TraceContext

_FAILED: Final = Status(StatusCode.ERROR)
_UNSET: Final = Status(StatusCode.UNSET)
_INHERITED_FLAGS: Final = TraceFlags.RANDOM_TRACE_ID
"""The trace flags that a span inherits from its parent."""


class FinishedSpans:
    """Passes finished spans to a span processor."""

    def __init__(self, processor: SpanProcessor, resource: Resource, scope: str) -> None:
        self._processor = processor
        self._resource = resource
        self._scope = InstrumentationScope(scope)
        self._random = RandomIdGenerator()

    def export(
        self,
        name: str,
        kind: SpanKind,
        times: tuple[int, int],
        attributes: Mapping[str, Value],
        *,
        parent: TraceContext | None,
        own: TraceContext | None,
        failed: bool,
    ) -> None:
        """Export a span with this start and end, in nanoseconds, unless its parent is not exported.

        `own` has the span's ids, if they were assigned before; otherwise they are random.
        """
        outer = _context_of(parent)
        if outer is not None and not outer.trace_flags.sampled:
            return
        span = ReadableSpan(
            name,
            self._context(outer, own),
            outer,
            self._resource,
            attributes,
            kind=kind,
            status=_FAILED if failed else _UNSET,
            start_time=times[0],
            end_time=times[1],
            instrumentation_scope=self._scope,
        )
        self._processor.on_end(span)

    def _context(self, parent: SpanContext | None, own: TraceContext | None) -> SpanContext:
        span = own.span if own else self._random.generate_span_id()
        if parent is not None:
            flags = TraceFlags(TraceFlags.SAMPLED | parent.trace_flags & _INHERITED_FLAGS)
            return SpanContext(parent.trace_id, span, is_remote=False, trace_flags=flags)
        trace = own.trace if own else self._random.generate_trace_id()
        return SpanContext(trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _context_of(parent: TraceContext | None) -> SpanContext | None:
    if parent is None:
        return None
    context = SpanContext(parent.trace, parent.span, is_remote=True, trace_flags=TraceFlags(parent.flags))
    return context if context.is_valid else None
