"""What a turn's result means for the task."""

from dataclasses import dataclass
from typing import Any, Final

from sandherd_drivers.wire import ErrorType

_PASSING: Final = frozenset({408, 409, 429})
_STOP_REASONS: Final = {
    "error_max_turns": "max_turns",
    "error_max_budget_usd": "max_budget",
}


@dataclass(frozen=True)
class Outcome:
    """How a turn ended. A turn that was interrupted is no outcome of the task: whoever stopped it says what is next."""

    error_type: ErrorType | None
    error: str
    stop_reason: str | None
    final_output: str | None
    interrupted: bool = False


def judge(result: Any) -> Outcome:
    """The outcome in a `ResultMessage`. A failure of the model's server may be called a success there."""
    reason = str(result.terminal_reason or "")
    if reason.startswith("aborted"):
        return Outcome(None, "", "interrupted", result.result, interrupted=True)
    if not result.is_error and result.subtype == "success":
        return Outcome(None, "", result.stop_reason or "end_turn", result.result)
    stop_reason = _STOP_REASONS.get(result.subtype) or reason or result.subtype
    kind = _of_server(result.api_error_status) if reason == "api_error" else "exit_status"
    return Outcome(kind, _text(result), stop_reason, result.result)


def signal_of(error: Exception | None) -> int | None:
    """The signal that has ended the program, where this error of the SDK's says that one has."""
    code = getattr(error, "exit_code", None)
    return -code if code is not None and code < 0 else None


def _of_server(status: int | None) -> ErrorType:
    """Whether the same may go well another time: the server was not there, had too much to do, or broke."""
    passes = status is None or status in _PASSING or status >= 500
    return "model_unavailable" if passes else "model_refused"


def _text(result: Any) -> str:
    errors = [str(error).strip() for error in result.errors or [] if str(error).strip()]
    return "; ".join(errors) or str(result.result or "").strip() or str(result.subtype)
