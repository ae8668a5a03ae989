"""What came of a turn."""

from dataclasses import dataclass
from typing import Final

from sandherd_drivers.openhands.telling import Document
from sandherd_drivers.wire import ErrorType

_PASSING: Final = frozenset({"rate_limit", "transient"})
"""The SDK's kinds of faults that may be gone another time."""
_REFUSED: Final = frozenset({"LLMAuthenticationError", "LLMBadRequestError", "NotFoundError"})
"""What it calls an answer of the model's server that will be the same another time."""
_STOP_REASONS: Final = {"MaxIterationsReached": "max_iterations"}
_STUCK: Final = "the agent repeats itself and gets nowhere"


@dataclass(frozen=True)
class Outcome:
    """How a turn ended. `error_type` is None if nothing went wrong."""

    stop_reason: str
    error_type: ErrorType | None = None
    error: str = ""
    settled: bool = True
    """Whether the agent has come to an end by itself. A turn that was stopped is no outcome of the task."""


def judge(status: str, fault: Document | None, *, stopped: bool) -> Outcome:
    """What the conversation's status after a turn means. `fault` is the error event of this turn, if there was one."""
    if status == "finished":
        return Outcome("finished")
    if status == "stuck":
        return Outcome("stuck", "exit_status", _STUCK)
    if status == "error":
        return _failure(fault or {})
    return Outcome("stopped" if stopped else "interrupted", settled=False)


def _failure(fault: Document) -> Outcome:
    code, detail = str(fault.get("code") or "error"), str(fault.get("detail") or "it broke off")
    kind = (fault.get("classification") or {}).get("kind")
    refused: ErrorType = "model_refused" if code in _REFUSED or kind == "auth" else "exit_status"
    return Outcome(
        _STOP_REASONS.get(code, code), "model_unavailable" if kind in _PASSING else refused, f"{code}: {detail}"
    )
