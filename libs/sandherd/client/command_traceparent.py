"""The trace context of a command. The library opentelemetry is only used if the program has loaded it."""

import sys

from sandherd.telemetry.traceparents import new_traceparent


def command_traceparent() -> str:
    """The trace context of the program's current span; a new trace context if there is no span."""
    if "opentelemetry.trace" not in sys.modules:
        return new_traceparent()
    from sandherd.telemetry.traces import current_traceparent

    return current_traceparent() or new_traceparent()
