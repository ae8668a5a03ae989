"""How a turn ended, and what that means for the task; and what a decision means among the options offered."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sandherd_drivers.wire import ErrorType

_UNDONE: Final = {
    "max_tokens": "the agent came to its limit of tokens before it was done (max_tokens)",
    "max_turn_requests": "the agent came to its limit of model calls before it was done (max_turn_requests)",
    "refusal": "the agent refused to go on (refusal)",
    "cancelled": "the agent broke its turn off by itself (cancelled)",
}
_PREFERRED: Final = {True: ("allow_once", "allow_always"), False: ("reject_once", "reject_always")}
AUTH_REQUIRED: Final = -32000


@dataclass(frozen=True)
class Outcome:
    """How a turn ended. Without an `error_type` the agent has done what it was asked."""

    stop_reason: str | None = None
    error_type: ErrorType | None = None
    error: str = ""
    signal: int | None = None
    """What has ended the agent's program."""
    interrupted: bool = False
    """Somebody wanted it to end: no outcome of the task."""
    gone: bool = False
    """The agent won't answer anything any more."""


INTERRUPTED: Final = Outcome("interrupted", "stopped", "the turn was interrupted", interrupted=True)


def of_stop_reason(stop_reason: str, *, interrupted: bool) -> Outcome:
    """The outcome of a turn that the agent ended in order."""
    if stop_reason == "end_turn":
        return Outcome(stop_reason)
    if stop_reason == "cancelled" and interrupted:
        return INTERRUPTED
    return Outcome(stop_reason, "internal", _UNDONE.get(stop_reason, f"the agent stopped: {stop_reason}"))


def of_refused_request(what: str, code: int, message: str, data: Any) -> Outcome:
    """The outcome of a request that the agent answered with an error."""
    details = data.get("details") if isinstance(data, dict) else data
    text = f"the agent answered {what} with error {code}: {message}" + (f" ({details})" if details else "")
    if code == AUTH_REQUIRED:
        return Outcome(None, "start", f"{text}; give it its credentials in the environment")
    return Outcome(None, "internal", text)


def of_exit(status: int | None) -> Outcome:
    """The outcome when the agent's program ended; None if it only stopped speaking."""
    if status is None:
        return Outcome(None, "internal", "the agent closed its side of the connection", gone=True)
    if status < 0:
        return Outcome(None, "signal", f"the agent was killed by {_signal_name(-status)}", -status, gone=True)
    return Outcome(None, "exit_status", f"the agent ended with status {status} before it was told to", gone=True)


def at_start(outcome: Outcome) -> Outcome:
    """The same, of an agent that had not begun yet: it couldn't be started."""
    return replace(outcome, error_type="start") if outcome.error_type == "internal" else outcome


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def chosen(options: Sequence[tuple[str, str]], *, granted: bool) -> str | None:
    """The id of the option, of (id, kind), that says it, once rather than for ever; None if none of them does."""
    for kind in _PREFERRED[granted]:
        for id, offered in options:
            if offered == kind:
                return id
    return None
