"""The trace context of a command. A program without spans need not load opentelemetry."""

import sys

from sandherd.telemetry.traceparents import new_traceparent


def command_traceparent() -> str:
    """That of the program's current span; without one, a new one."""
    if "opentelemetry.trace" not in sys.modules:
        return new_traceparent()
    from sandherd.telemetry.traces import current_traceparent

    return current_traceparent() or new_traceparent()
