"""The outcome of a tool call, from the SDK's event for its result. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from sandherd_drivers.call_results import CallResult, exit_status, result_of_status

_STILL_RUNS: Final = -1
"""The exit status of a command that has not ended in time, and still runs."""
_INTERRUPTED: Final = "Tool call interrupted before completion"
"""The beginning of the error of a call that was interrupted; nothing else in the event shows the interrupt."""


def call_result(event: Mapping[str, Any], denials: Mapping[str, str]) -> CallResult:
    """How the call ended. `denials` has the outcomes of calls that the driver denied, by the ids of their actions.

    The SDK reports a denied call as rejected by a hook, and a call that was open at the turn's end as rejected by a
    user.
    """
    kind, observation = event["kind"], event.get("observation") or {}
    if kind == "UserRejectObservation":
        is_denied = event.get("rejection_source") == "hook"
        return CallResult(denials.get(str(event.get("action_id")), "denied") if is_denied else "cancelled")
    if kind == "AgentErrorEvent":
        return CallResult("cancelled" if str(event.get("error")).startswith(_INTERRUPTED) else "failed")
    status = exit_status(observation.get("exit_code"))
    if observation.get("timeout") is True or (status == _STILL_RUNS and not observation.get("is_error")):
        return CallResult("timed_out")
    if observation.get("is_error"):
        return CallResult("failed", status if status != _STILL_RUNS else None)
    return CallResult("ok") if status is None else result_of_status(status)
