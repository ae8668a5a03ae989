"""The outcome of a turn, from its result, and its meaning for the task."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sandherd_drivers.wire import ErrorType

_CREDENTIAL_VARIABLES: Final = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")
"""The variables with a credential that the agent uses."""
_LOGIN_COMMAND: Final = "/login"
"""Part of the result of an agent without a usable credential. It has sent no request, so there is no HTTP status."""
_TRANSIENT_HTTP_STATUSES: Final = frozenset({408, 409, 429})
_LIMIT_STOP_REASONS: Final = {
    "error_max_turns": "max_turns",
    "error_max_budget_usd": "max_budget",
}


@dataclass(frozen=True)
class ClaudeOutcome:
    """How a turn ended. The outcome of an interrupted turn is not the task's result."""

    error_type: ErrorType | None
    error: str
    stop_reason: str | None
    final_output: str | None
    interrupted: bool = False


def outcome_of_result(result: Any, environ: Mapping[str, str] = os.environ) -> ClaudeOutcome:
    """The outcome for a `ResultMessage`. Its subtype may be `success` in spite of an error of the model's server.

    `environ` is the agent's environment, in which the variables with credentials are searched for.
    """
    reason = str(result.terminal_reason or "")
    if reason.startswith("aborted"):
        return ClaudeOutcome(None, "", "interrupted", result.result, interrupted=True)
    if not result.is_error and result.subtype == "success":
        return ClaudeOutcome(None, "", result.stop_reason or "end_turn", result.result)
    stop_reason, text = _LIMIT_STOP_REASONS.get(result.subtype) or reason or result.subtype, _error_text(result)
    if reason == "api_error" and result.api_error_status is None and _LOGIN_COMMAND in text:
        return ClaudeOutcome("model_refused", _login_text(text, environ), stop_reason, result.result)
    error_type = _server_error_type(result.api_error_status) if reason == "api_error" else "exit_status"
    return ClaudeOutcome(error_type, text, stop_reason, result.result)


def _login_text(text: str, environ: Mapping[str, str]) -> str:
    """What to do about a missing or unusable credential: an agent in a sandbox can't log in."""
    set_variables = [name for name in _CREDENTIAL_VARIABLES if environ.get(name)]
    if set_variables:
        return f"{text}: the agent does not accept {set_variables[0]}"
    return f"the model's key is missing: ANTHROPIC_API_KEY is not set; add --secret-env ANTHROPIC_API_KEY ({text})"


def exit_signal(error: Exception | None) -> int | None:
    """The signal that ended the program, if this error of the SDK reports one."""
    code = getattr(error, "exit_code", None)
    return -code if code is not None and code < 0 else None


def _server_error_type(status: int | None) -> ErrorType:
    """`model_unavailable` if the error is transient: the server was unavailable, overloaded, or failed."""
    is_transient = status is None or status in _TRANSIENT_HTTP_STATUSES or status >= 500
    return "model_unavailable" if is_transient else "model_refused"


def _error_text(result: Any) -> str:
    errors = [str(error).strip() for error in result.errors or [] if str(error).strip()]
    return "; ".join(errors) or str(result.result or "").strip() or str(result.subtype)
