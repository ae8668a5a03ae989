"""Calls: which are in flight, and which end. Guardian rules compare those that end, idle rules those in flight."""

import hashlib
import json
from typing import Any, Final

from monitor.facts import MAX_CALLS, MAX_CLOSED, NO_CALLS, Call, EndedCall, ObservedEvent
from monitor.state import SandboxActivity
from sandherd.contracts.events import EventData
from sandherd.contracts.events.access import AgentExecStarted
from sandherd.contracts.events.call_facts import CallEnd
from sandherd.contracts.events.tools import (
    AgentApprovalRequested,
    AgentToolCompleted,
    AgentToolResult,
    AgentToolUse,
    AgentUserToolResult,
)

_LENGTH: Final = 24


def digest(*parts: Any) -> str:
    """The same text for equal JSON values, independent of the order of their members; 24 hexadecimal digits."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]


def call_digest(tool: str, tool_input: Any) -> str:
    """The digest of a tool and its input."""
    return digest("call", tool, tool_input)


def result_digest(result: Any) -> str:
    """The digest of a tool's result."""
    return digest("result", result)


_WHOLE: Final = "program"
_TOOL_KEY: Final = "tool_use_id"


def opened(state: SandboxActivity, seen: ObservedEvent, data: EventData, field: str) -> SandboxActivity:
    """The state after a call has begun; unchanged if that call is known to have ended already."""
    key = _key(field, str(getattr(data, field)))
    if key in state.closed or key in state.in_flight or len(state.in_flight) >= MAX_CALLS:
        return state
    return state.changed(in_flight={**state.in_flight, key: _call(seen, data)})


def _call(seen: ObservedEvent, data: EventData) -> Call:
    if isinstance(data, AgentToolUse):
        return Call(data.tool[:80], seen.at, call_digest(data.tool, data.input), data.event_subtype == _WHOLE)
    if isinstance(data, AgentExecStarted):
        return Call("exec", seen.at, by_user=True)
    if isinstance(data, AgentApprovalRequested):
        return Call("approval", seen.at, waits=True)
    return Call(seen.type.removeprefix("agent.").removesuffix("_invoked").removesuffix("_started"), seen.at)


def closed(
    state: SandboxActivity, seen: ObservedEvent, data: EventData, field: str
) -> tuple[SandboxActivity, EndedCall | None]:
    """The state after a call has ended, and that call if it is of a tool.

    Only its first result counts, as a harness may report one call twice.
    """
    call_id: str | None = getattr(data, field)
    key = _key(field, call_id) if call_id is not None else _unnamed(state, data)
    if key is not None and key in state.closed:
        return state, None
    call = state.in_flight.get(key) if key is not None else None
    digest = _digest(call, data)
    if key is not None:
        state = _without_call(state, key)
    if digest is None:
        return state, None
    return state, _ended(call, data, digest, seen)


def _ended(call: Call | None, data: EventData, digest: str, seen: ObservedEvent) -> EndedCall:
    tool, result = _tool(call, data), result_digest(_result_of(data))
    if not isinstance(data, CallEnd):
        return EndedCall(tool, digest, result, seen.id, seen.number, seen.at)
    return EndedCall(
        *(tool, digest, result, seen.id, seen.number, seen.at),
        outcome=data.outcome,
        exit_code=data.exit_code,
        check=data.check,
        check_passed=data.check_passed,
        turn=data.turn,
        parent=data.parent_tool_use_id,
    )


def _key(field: str, call_id: str) -> str:
    """The key of a call, distinct by kind: a tool call must not end a command from outside that has the same id."""
    return call_id if field == _TOOL_KEY else f"{field} {call_id}"


def _unnamed(state: SandboxActivity, data: EventData) -> str | None:
    """The call that a completion without an id most likely ends: the oldest with the same tool and input."""
    if not isinstance(data, AgentToolCompleted):
        return None
    wanted = call_digest(data.tool, data.tool_input)
    return next((key for key, call in state.in_flight.items() if call.digest == wanted), None)


def _without_call(state: SandboxActivity, key: str) -> SandboxActivity:
    in_flight = {other: call for other, call in state.in_flight.items() if other != key} or NO_CALLS
    return state.changed(in_flight=in_flight, closed=(*state.closed, key)[-MAX_CLOSED:])


def _digest(call: Call | None, data: EventData) -> str | None:
    """The digest of the call that ended; None if the call is unknown, or of a kind that is not compared."""
    if call is not None:
        return call.digest
    return call_digest(data.tool, data.tool_input) if isinstance(data, AgentToolCompleted) else None


def _tool(call: Call | None, data: EventData) -> str:
    return call.tool if call is not None else str(getattr(data, "tool", ""))[:80]


def _result_of(data: EventData) -> Any:
    if isinstance(data, AgentToolCompleted):
        return data.tool_response
    return data.result if isinstance(data, AgentToolResult | AgentUserToolResult) else None
