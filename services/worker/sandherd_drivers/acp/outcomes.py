"""The outcomes of turns, their meaning for the task, and the mapping of a decision to the offered options."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sandherd_drivers.wire import ErrorType

_INCOMPLETE_TURN_ERRORS: Final = {
    "max_tokens": "the agent reached its token limit before it was done (max_tokens)",
    "max_turn_requests": "the agent reached its limit of model calls before it was done (max_turn_requests)",
    "refusal": "the agent refused to continue (refusal)",
    "cancelled": "the agent cancelled its turn by itself (cancelled)",
}
_OPTION_KINDS: Final = {True: ("allow_once", "allow_always"), False: ("reject_once", "reject_always")}
"""The kinds of options that grant (True) or deny (False) a request, the preferred one first."""
AUTH_REQUIRED: Final = -32000
"""The protocol's code of an error about missing credentials."""


@dataclass(frozen=True)
class AcpOutcome:
    """How a turn ended. Without an `error_type` the agent has completed the prompt."""

    stop_reason: str | None = None
    error_type: ErrorType | None = None
    error: str = ""
    signal: int | None = None
    """The signal that ended the agent's program."""
    interrupted: bool = False
    """Whether the turn was interrupted on request: then its outcome is not the task's result."""
    agent_ended: bool = False
    """Whether the agent has ended, and will not respond any more."""


INTERRUPTED: Final = AcpOutcome("interrupted", "stopped", "the turn was interrupted", interrupted=True)


def outcome_of_stop_reason(stop_reason: str, *, interrupted: bool) -> AcpOutcome:
    """The outcome of a turn that the agent ended with a stop reason."""
    if stop_reason == "end_turn":
        return AcpOutcome(stop_reason)
    if stop_reason == "cancelled" and interrupted:
        return INTERRUPTED
    return AcpOutcome(
        stop_reason, "internal", _INCOMPLETE_TURN_ERRORS.get(stop_reason, f"the agent stopped: {stop_reason}")
    )


def outcome_of_error_response(request: str, code: int, message: str, data: Any) -> AcpOutcome:
    """The outcome of a request to which the agent responded with an error."""
    details = data.get("details") if isinstance(data, dict) else data
    text = f"the agent responded to {request} with error {code}: {message}" + (f" ({details})" if details else "")
    if code == AUTH_REQUIRED:
        return AcpOutcome(None, "start", f"{text}; set its credentials in the environment")
    return AcpOutcome(None, "internal", text)


def outcome_of_exit(status: int | None) -> AcpOutcome:
    """The outcome when the agent's program ended; with status None, it has only closed the connection."""
    if status is None:
        return AcpOutcome(None, "internal", "the agent closed its side of the connection", agent_ended=True)
    if status < 0:
        return AcpOutcome(None, "signal", f"the agent was killed by {_signal_name(-status)}", -status, agent_ended=True)
    return AcpOutcome(
        None, "exit_status", f"the agent ended with status {status} before its end was requested", agent_ended=True
    )


def as_start_failure(outcome: AcpOutcome) -> AcpOutcome:
    """This outcome for an agent that has not begun a session: an internal error becomes a failed start."""
    return replace(outcome, error_type="start") if outcome.error_type == "internal" else outcome


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def choose_option(options: Sequence[tuple[str, str]], *, granted: bool) -> str | None:
    """The id of the option for this decision; None if there is none. `options` are pairs of id and kind.

    An option for one call is preferred to one for all calls.
    """
    for kind in _OPTION_KINDS[granted]:
        for id, option_kind in options:
            if option_kind == kind:
                return id
    return None
