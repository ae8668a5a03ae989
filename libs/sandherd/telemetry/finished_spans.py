"""Spans of what has ended already, given to the exporter as they are: that takes a third of a started span's time.

Only with the SDK's own sampler, which exports what the parent's trace exports. Another one decides by its own rules,
for which it needs the SDK's span.
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
_PASSED_ON: Final = TraceFlags.RANDOM_TRACE_ID
"""The flags that a span has because its parent has them."""


class FinishedSpans:
    """Hands finished spans to the processor of spans that end."""

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
        """Export a span from one time to another, in nanoseconds, unless its parent's trace is not exported."""
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
            flags = TraceFlags(TraceFlags.SAMPLED | parent.trace_flags & _PASSED_ON)
            return SpanContext(parent.trace_id, span, is_remote=False, trace_flags=flags)
        trace = own.trace if own else self._random.generate_trace_id()
        return SpanContext(trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _context_of(parent: TraceContext | None) -> SpanContext | None:
    if parent is None:
        return None
    found = SpanContext(parent.trace, parent.span, is_remote=True, trace_flags=TraceFlags(parent.flags))
    return found if found.is_valid else None
