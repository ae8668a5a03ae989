"""Trace contexts as they go along on envelopes and in records (W3C Trace Context, level 1). Pure but for chance.

The spans of a task, a sandbox and an agent are told when they end. Their numbers are known from the beginning, so that
what happens within them can name them: they are derived, the same by whoever asks.
"""

import hashlib
import re
import secrets
from typing import Final, NamedTuple

_SHAPE: Final = re.compile(r"^[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$")


class Context(NamedTuple):
    """The parts of a traceparent."""

    trace: int
    span: int
    flags: int


def new_traceparent() -> str:
    """A new trace, for where none has begun.

    Nobody tells a span by this number unless the task or sandbox does that begins with it: `is_untold` knows it by its
    being the second half of the trace's.
    """
    trace = secrets.token_hex(16)
    return f"00-{trace}-{trace[16:]}-01"


def is_untold(traceparent: str) -> bool:
    """Whether the span that is named here is nobody's yet."""
    _, trace, span, _ = traceparent.split("-")
    return span == trace[16:]


def derived(traceparent: str, name: str) -> str:
    """The span called `name` within another: always the same."""
    version, trace, _, flags = traceparent.split("-")
    span = hashlib.sha256(f"{traceparent}/{name}".encode()).hexdigest()[:16]
    return f"{version}-{trace}-{span}-{flags}"


def begun_with(traceparent: str, name: str) -> tuple[str, str | None]:
    """Where something stands that was asked for in this trace: its own span, and the one around it if there is one."""
    if is_untold(traceparent):
        return traceparent, None
    return derived(traceparent, name), traceparent


def read(traceparent: str | None) -> Context | None:
    """The parts; None if this is no traceparent."""
    match = _SHAPE.match(traceparent or "")
    return Context(*(int(group, 16) for group in match.groups())) if match else None


def of_sandbox(task: str, sandbox: str) -> str:
    """The span of a task's sandbox."""
    return derived(task, sandbox)


def of_agent(sandbox: str) -> str:
    """The span of the agent in a sandbox: what it does itself is part of that."""
    return derived(sandbox, "agent")
