"""Tracks calls in flight, and calls that end.

Guardian rules compare ended calls; idle rules read the calls in flight.
"""

import hashlib
from typing import Any, Final

from monitor.facts import MAX_CALLS, MAX_CLOSED, NO_CALLS, Call, EndedCall, ObservedEvent
from monitor.normalisation import cause_digest, input_digest, result_digest, result_text, text_digest
from monitor.polling_calls import is_poll
from monitor.sandbox_state import SandboxActivity
from sandherd.contracts.events import EventData
from sandherd.contracts.events.access import AgentExecStarted
from sandherd.contracts.events.call_facts import CallEnd
from sandherd.contracts.events.tools import (
    AgentApprovalRequested,
    AgentSubagentInvoked,
    AgentToolCompleted,
    AgentToolResult,
    AgentToolUse,
    AgentUserToolResult,
)

_MAX_NAME_LENGTH: Final = 80
_MAX_PARENT_LENGTH: Final = 128
_MAX_ID_LENGTH: Final = 128
_PROGRAM_KEY: Final = "program"
_TOOL_KEY: Final = "tool_use_id"
_TIMEOUT_CAUSE: Final = "timed_out"
"""The error of every call that times out. Its output is ignored."""


def after_call_start(state: SandboxActivity, event: ObservedEvent, data: EventData, field: str) -> SandboxActivity:
    """The state after a call has begun.

    Unchanged if that call is in flight already, is known to have ended, or if `MAX_CALLS` other calls are in flight.
    """
    key = _key(field, str(getattr(data, field)))
    if key in state.closed or key in state.in_flight or len(state.in_flight) >= MAX_CALLS:
        return state
    return state.changed(in_flight={**state.in_flight, key: _new_call(state, event, data)})


def _new_call(state: SandboxActivity, event: ObservedEvent, data: EventData) -> Call:
    if isinstance(data, AgentToolUse):
        return _new_tool_call(state, event, data)
    if isinstance(data, AgentSubagentInvoked):
        return Call("subagent", event.at, delegated=True)
    if isinstance(data, AgentExecStarted):
        return Call("exec", event.at, by_user=True)
    if isinstance(data, AgentApprovalRequested):
        return Call("approval", event.at, waits=True)
    return Call(event.type.removeprefix("agent.").removesuffix("_invoked").removesuffix("_started"), event.at)


def _new_tool_call(state: SandboxActivity, event: ObservedEvent, data: AgentToolUse) -> Call:
    parent = _limited_parent(data.parent_tool_use_id)
    batches = (call.batch for call in state.in_flight.values() if call.digest is not None and call.parent == parent)
    return Call(
        data.tool[:_MAX_NAME_LENGTH],
        event.at,
        input_digest(data.tool, data.input, parent),
        data.event_subtype == _PROGRAM_KEY,
        number=event.number,
        batch=next(batches, event.number),
        parent=parent,
        polls=is_poll(data.tool, data.input),
    )


def _limited_parent(call_id: str | None) -> str | None:
    return None if call_id is None else call_id[:_MAX_PARENT_LENGTH]


def after_call_end(
    state: SandboxActivity, event: ObservedEvent, data: EventData, field: str
) -> tuple[SandboxActivity, EndedCall | None]:
    """The state after a call has ended, and the ended call if it is of a tool.

    Only the first result of a call counts, as a harness may report a call twice.
    """
    call_id: str | None = getattr(data, field)
    key = _key(field, call_id) if call_id is not None else _key_without_id(state, data)
    if key is not None and key in state.closed:
        return state, None
    call = state.in_flight.get(key) if key is not None else None
    digest = _digest_of(call, data)
    if key is not None:
        state = _without_call(state, key)
    if digest is None:
        return state, None
    return state, _end_call(call, data, digest, event)


def _end_call(call: Call | None, data: EventData, digest: str, event: ObservedEvent) -> EndedCall:
    text = result_text(_result_of(data))
    result = result_digest(text)
    open_call = call or Call("", event.at, number=event.number, batch=event.number, polls=_is_poll_without_start(data))
    outcome_fields = _outcome_fields(data, text) if isinstance(data, CallEnd) else {}
    return EndedCall(
        *(_tool_name(call, data), digest, result, event.id, event.number, event.at),
        began=open_call.number,
        begun_at=open_call.begun_at,
        batch=open_call.batch,
        polls=open_call.polls,
        lines=text.count("\n") + 1,
        pair=text_digest(digest + result),
        parent=open_call.parent or _limited_parent(getattr(data, "parent_tool_use_id", None)),
        **outcome_fields,
    )


def _outcome_fields(data: CallEnd, text: str) -> dict[str, Any]:
    """The fields of `EndedCall` that state how a call ended.

    Exit status 1 without an error text means that a command found nothing, which is not an error.
    """
    error = cause_digest(text, needs_reason=data.exit_code == 1) if _has_failed(data) else None
    if error is None and data.outcome == "failed" and data.exit_code != 1:
        error = text_digest(f"status {data.exit_code}")
    return {
        "outcome": data.outcome,
        "exit_code": data.exit_code,
        "check": data.check,
        "check_passed": data.check_passed,
        "turn": data.turn,
        "error": _TIMEOUT_CAUSE if data.outcome == "timed_out" else error,
    }


def _has_failed(data: CallEnd) -> bool:
    if data.outcome is not None:
        return data.outcome == "failed"
    return isinstance(data, AgentToolResult) and data.is_error


def _is_poll_without_start(data: EventData) -> bool:
    return isinstance(data, AgentToolCompleted) and is_poll(data.tool, data.tool_input)


def _key(field: str, call_id: str) -> str:
    """The key of a call. It has the kind of the call: a tool call must not end a user's command that has the same id.

    A sandbox chooses the ids of its calls. To limit the size, an id that is longer than any harness's is replaced by a
    digest.
    """
    if len(call_id) > _MAX_ID_LENGTH:
        call_id = hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()
    return call_id if field == _TOOL_KEY else f"{field} {call_id}"


def _key_without_id(state: SandboxActivity, data: EventData) -> str | None:
    """The key of the call that a completion without an id most likely ends: the oldest with the same tool and input."""
    if not isinstance(data, AgentToolCompleted):
        return None
    digest = input_digest(data.tool, data.tool_input, _limited_parent(data.parent_tool_use_id))
    return next((key for key, call in state.in_flight.items() if call.digest == digest), None)


def _without_call(state: SandboxActivity, key: str) -> SandboxActivity:
    in_flight = {other: call for other, call in state.in_flight.items() if other != key} or NO_CALLS
    return state.changed(in_flight=in_flight, closed=(*state.closed, key)[-MAX_CLOSED:])


def _digest_of(call: Call | None, data: EventData) -> str | None:
    """The digest of the ended call; from the event if the start is unknown. None if neither has it."""
    if call is not None:
        return call.digest
    return (
        input_digest(data.tool, data.tool_input, _limited_parent(data.parent_tool_use_id))
        if isinstance(data, AgentToolCompleted)
        else None
    )


def _tool_name(call: Call | None, data: EventData) -> str:
    return call.tool if call is not None else str(getattr(data, "tool", ""))[:_MAX_NAME_LENGTH]


def _result_of(data: EventData) -> Any:
    if isinstance(data, AgentToolCompleted):
        return data.tool_response
    return data.result if isinstance(data, AgentToolResult | AgentUserToolResult) else None
