"""Calls in flight, and the streak of equal ones: what the guardian's loop rule and the idle rules look at."""

from dataclasses import replace
from typing import Any, Final

from monitor.digests import call_digest, result_digest
from monitor.state import MOST_CALLS, MOST_CLOSED, MOST_EVIDENCE, Call, Seen, Steering, Streak, Watched
from sandherd.contracts.events import EventData
from sandherd.contracts.events.access import AgentExecStarted
from sandherd.contracts.events.tools import (
    AgentApprovalRequested,
    AgentToolCompleted,
    AgentToolResult,
    AgentToolUse,
    AgentUserToolResult,
)

_WHOLE: Final = "program"
_TOOL_KEY: Final = "tool_use_id"


def opened(state: Watched, seen: Seen, data: EventData, field: str) -> Watched:
    """A call has begun, unless it is known to have ended already."""
    key = _key(field, str(getattr(data, field)))
    if key in state.closed or key in state.in_flight or len(state.in_flight) >= MOST_CALLS:
        return state
    return replace(state, in_flight={**state.in_flight, key: _call(seen, data)})


def _call(seen: Seen, data: EventData) -> Call:
    if isinstance(data, AgentToolUse):
        return Call(data.tool[:80], seen.at, call_digest(data.tool, data.input), data.event_subtype == _WHOLE)
    if isinstance(data, AgentExecStarted):
        return Call("exec", seen.at, asked=True)
    if isinstance(data, AgentApprovalRequested):
        return Call("approval", seen.at, waits=True)
    return Call(seen.type.removeprefix("agent.").removesuffix("_invoked").removesuffix("_started"), seen.at)


def closed(state: Watched, seen: Seen, data: EventData, field: str) -> Watched:
    """A call has ended. The first of its results counts, and no other: a harness may report one call twice."""
    given: str | None = getattr(data, field)
    key = _key(field, given) if given is not None else _unnamed(state, data)
    if key is not None and key in state.closed:
        return state
    call = state.in_flight.get(key) if key is not None else None
    digest = _digest(call, data)
    if key is not None:
        state = _forget(state, key)
    return state if digest is None else _repeated(state, seen, digest, _tool(call, data), result_digest(_answer(data)))


def _key(field: str, given: str) -> str:
    """A call's key: an agent that calls its own like a command from outside does not end that."""
    return given if field == _TOOL_KEY else f"{field} {given}"


def _unnamed(state: Watched, data: EventData) -> str | None:
    """The call that a completion without an id most likely ends: the oldest with the same tool and input."""
    if not isinstance(data, AgentToolCompleted):
        return None
    wanted = call_digest(data.tool, data.tool_input)
    return next((key for key, call in state.in_flight.items() if call.digest == wanted), None)


def _forget(state: Watched, key: str) -> Watched:
    in_flight = {other: call for other, call in state.in_flight.items() if other != key}
    return replace(state, in_flight=in_flight, closed=(*state.closed, key)[-MOST_CLOSED:])


def _digest(call: Call | None, data: EventData) -> str | None:
    """What stands for the call that ended; None if it is not known, or not one that is compared."""
    if call is not None:
        return call.digest
    return call_digest(data.tool, data.tool_input) if isinstance(data, AgentToolCompleted) else None


def _tool(call: Call | None, data: EventData) -> str:
    return call.tool if call is not None else str(getattr(data, "tool", ""))[:80]


def _answer(data: EventData) -> Any:
    if isinstance(data, AgentToolCompleted):
        return data.tool_response
    return data.result if isinstance(data, AgentToolResult | AgentUserToolResult) else None


def _repeated(state: Watched, seen: Seen, call: str, tool: str, result: str) -> Watched:
    """One more in a row, or the first of another row; and an answer to a steering that was heard."""
    before = state.streak
    evidence = (seen.id,) if seen.id else ()
    if before is not None and (before.call, before.result) == (call, result):
        kept = (*before.evidence, *evidence)[-MOST_EVIDENCE:]
        streak = replace(before, count=before.count + 1, evidence=kept)
    else:
        streak = Streak(call, result, tool, seen.number, seen.at, evidence=evidence)
    return replace(state, streak=streak, steering=_answered(state.steering, call, result))


def _answered(steering: Steering | None, call: str, result: str) -> Steering | None:
    """What the call says of a steering: anything else obeys it, the same again repeats what it was about."""
    if steering is None or steering.heard_at is None or steering.outcome is not None:
        return steering
    if (call, result) != (steering.call, steering.result):
        return replace(steering, outcome="obeyed")
    return replace(steering, repeats=steering.repeats + 1)
