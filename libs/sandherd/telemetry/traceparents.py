"""Trace contexts on envelopes and in records (W3C Trace Context, level 1). Pure functions, except for random numbers.

The spans of a task, a sandbox and an agent are exported when they end. Their ids have to be known from the start, so
that spans within them can refer to them. So the ids are derived, and every process computes the same ones.
"""

import hashlib
import re
import secrets
from typing import Final, NamedTuple

_SHAPE: Final = re.compile(r"^[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$")


class TraceContext(NamedTuple):
    """The parts of a traceparent."""

    trace: int
    span: int
    flags: int


def new_traceparent() -> str:
    """The traceparent of a new trace.

    Its span id is the second half of the trace id, by which `is_span_unused` recognizes it. The only span that is
    exported with this id is that of the task or sandbox that begins the trace.
    """
    trace = secrets.token_hex(16)
    return f"00-{trace}-{trace[16:]}-01"


def is_span_unused(traceparent: str) -> bool:
    """Whether no exported span has the span id of this traceparent yet."""
    _, trace, span, _ = traceparent.split("-")
    return span == trace[16:]


def derived(traceparent: str, name: str) -> str:
    """The traceparent of a span within another one. Its id is computed from `traceparent` and `name` only."""
    version, trace, _, flags = traceparent.split("-")
    span = hashlib.sha256(f"{traceparent}/{name}".encode()).hexdigest()[:16]
    return f"{version}-{trace}-{span}-{flags}"


def new_span(traceparent: str) -> str:
    """The traceparent of another span of this trace, with a random id."""
    version, trace, _, flags = traceparent.split("-")
    return f"{version}-{trace}-{secrets.token_hex(8)}-{flags}"


def request_span(traceparent: str, name: str) -> tuple[str, str | None]:
    """The traceparent of a task or sandbox that was requested in this trace, and that of its parent span, if any."""
    if is_span_unused(traceparent):
        return traceparent, None
    return derived(traceparent, name), traceparent


def read(traceparent: str | None) -> TraceContext | None:
    """The parts of a traceparent; None if it is not valid."""
    match = _SHAPE.match(traceparent or "")
    return TraceContext(*(int(group, 16) for group in match.groups())) if match else None


def of_sandbox(task: str, sandbox: str) -> str:
    """The traceparent of the span of a sandbox. `task` is the traceparent of its task."""
    return derived(task, sandbox)


def of_agent(sandbox: str) -> str:
    """The traceparent of the span of the agent in a sandbox, which is the parent of the agent's operations."""
    return derived(sandbox, "agent")
