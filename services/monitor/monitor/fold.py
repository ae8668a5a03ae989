"""The fold: one event into the state of its sandbox. Pure, and its cost does not grow with the herd.

The monitor's own events are folded too, so that a monitor that was restarted knows what it has done already.
"""

from dataclasses import replace
from typing import Any, Final

from monitor.calls import closed, opened
from monitor.state import SPELL, Found, Seen, Steering, Watched
from sandherd.contracts.events import EVENTS
from sandherd.contracts.events.agent import AgentHeartbeat, AgentTurnCompleted
from sandherd.contracts.events.lifecycle import SandboxExtended, SandboxRequested
from sandherd.contracts.events.message import (
    MessageAcknowledged,
    MessageEvent,
    MessageExpired,
    MessageQueued,
    MessageRejected,
)
from sandherd.contracts.events.monitor import Found as FoundEvent
from sandherd.contracts.events.monitor import MonitorInterventionDecided, MonitorInterventionOutcome

_GONE: Final = frozenset({"sandbox.terminated", "sandbox.failed"})
_LIVES: Final = frozenset({"sandbox.requested", "sandbox.spawned", "sandbox.running", "sandbox.resumed"})
_SANDBOX: Final = _LIVES | _GONE | {"sandbox.paused", "sandbox.extended", "sandbox.stopping"}
_FOUND: Final = frozenset({"monitor.dead_found", "monitor.flood_found", "monitor.idle_found"})


def fold(state: Watched | None, seen: Seen) -> Watched | None:
    """The state after this event; None if it is about no sandbox that is watched.

    An event that was folded in already changes nothing, so that a restored state may be given the same events again.
    """
    if state is None:
        state = _begin(seen)
        return step(state, seen) if state is not None else None
    if seen.number <= state.number:
        return state
    return step(replace(state, number=seen.number), seen)


def step(state: Watched, seen: Seen) -> Watched:
    """The state after this event, wherever the event stands in the stream."""
    domain = seen.type.partition(".")[0]
    if domain == "agent":
        return _agent(state, seen)
    if domain == "sandbox":
        return _sandbox(state, seen)
    if domain == "message":
        return _message(state, seen)
    if domain == "approval":
        return _answered(state, seen)
    return _over(state, seen) if domain == "task" else _own(state, seen)


def _begin(seen: Seen) -> Watched | None:
    """A sandbox is watched from its first sign on; what is said to or about one does not make it exist."""
    if not seen.type.startswith("agent.") and seen.type not in _SANDBOX:
        return None
    return Watched(
        project=seen.project,
        sandbox=seen.entity,
        number=seen.number,
        started_at=seen.at,
        last_sign_at=seen.at,
    )


def _agent(state: Watched, seen: Seen) -> Watched:
    model = EVENTS.get(seen.type)
    changes: dict[str, Any] = {"last_sign_at": seen.at} | _said(state, seen)
    if seen.taskid is not None and state.taskid is None:
        changes |= {"taskid": seen.taskid, "traceparent": seen.traceparent}
    if seen.type == AgentHeartbeat.type:
        changes["last_heartbeat_at"] = seen.at
        if isinstance(seen.data, AgentHeartbeat):
            changes["spool"] = seen.data.spool_depth
    if model is None:
        return replace(state, **changes)
    if model.counts_as_work:
        changes["last_work_at"] = seen.at
    if seen.type == AgentTurnCompleted.type:
        # What was asked in a turn that is over nobody waits for, whenever it is answered.
        changes["in_flight"] = {key: call for key, call in state.in_flight.items() if not call.waits}
    if model.terminal and state.finished_at is None:
        changes |= {"finished_at": seen.at, "steering": _cut_short(state.steering, "finished")}
    return _calls(replace(state, **changes), seen, model.opens, model.closes)


def _said(state: Watched, seen: Seen) -> dict[str, Any]:
    """How much it said: summed up over a spell, and then anew."""
    if state.said_since is None or (seen.at - state.said_since).total_seconds() >= SPELL:
        return {"said_since": seen.at, "said_bytes": seen.size, "said_messages": 1, "said_junk": int(seen.junk)}
    return {
        "said_bytes": state.said_bytes + seen.size,
        "said_messages": state.said_messages + 1,
        "said_junk": state.said_junk + seen.junk,
    }


def _calls(state: Watched, seen: Seen, opens: str | None, closes: str | None) -> Watched:
    if seen.data is None:
        return state
    if opens is not None:
        return opened(state, seen, seen.data, opens)
    return closed(state, seen, seen.data, closes) if closes is not None else state


def _answered(state: Watched, seen: Seen) -> Watched:
    """A person's leave was given or denied, or did not come; what waited for it begins only now."""
    model = EVENTS.get(seen.type)
    if model is None or model.closes is None:
        return state
    return _calls(replace(state, answered_at=seen.at), seen, None, model.closes)


def _sandbox(state: Watched, seen: Seen) -> Watched:
    changes = _changes(state, seen)
    if seen.taskid is not None and state.taskid is None:
        changes |= {"taskid": seen.taskid, "traceparent": seen.traceparent}
    return replace(state, **changes)


def _changes(state: Watched, seen: Seen) -> dict[str, Any]:
    """What the spawner's word about a sandbox changes."""
    sign = {"last_sign_at": max(seen.at, state.last_sign_at)}
    if isinstance(seen.data, SandboxRequested):
        expires = {"expires_at": state.expires_at or seen.data.expires_at}
        return sign | expires | {"linger": seen.data.linger_seconds, "alone": seen.taskid is None}
    if isinstance(seen.data, SandboxExtended):
        return {"expires_at": seen.data.expires_at}
    if seen.type in _LIVES:
        resumed = seen.at if seen.type == "sandbox.resumed" else state.resumed_at
        return sign | {"paused": False, "resumed_at": resumed}
    if seen.type == "sandbox.paused":
        return {"paused": True}
    if seen.type == "sandbox.stopping":
        return {"stopping": True}
    return {"ended": True, "steering": _cut_short(state.steering, "finished")} if seen.type in _GONE else {}


def _over(state: Watched, seen: Seen) -> Watched:
    """Its attempt is over for the spawner: as if its agent had ended. The next attempt is another sandbox."""
    if state.finished_at is not None:
        return state
    return replace(state, finished_at=seen.at, steering=_cut_short(state.steering, "finished"))


def _message(state: Watched, seen: Seen) -> Watched:
    data = seen.data
    if not isinstance(data, MessageEvent):
        return state
    steering = state.steering
    if steering is not None and data.message_id == steering.message:
        return replace(state, steering=_on_its_way(steering, seen, data))
    if isinstance(data, MessageAcknowledged) and data.message_type != "guardian_nudge":
        return replace(state, last_message_at=seen.at)
    return state


def _on_its_way(steering: Steering, seen: Seen, data: MessageEvent) -> Steering:
    if isinstance(data, MessageQueued):
        return replace(steering, taken=True)
    if isinstance(data, MessageAcknowledged):
        return replace(steering, taken=True, heard_at=steering.heard_at or seen.at)
    if isinstance(data, MessageRejected | MessageExpired):
        return replace(steering, taken=True, outcome=steering.outcome or "undelivered")
    return steering


def _cut_short(steering: Steering | None, outcome: Any) -> Steering | None:
    if steering is None or steering.outcome is not None:
        return steering
    return replace(steering, outcome=outcome)


def _own(state: Watched, seen: Seen) -> Watched:
    data = seen.data
    if seen.type in _FOUND and isinstance(data, FoundEvent):
        return _found(state, seen, data)
    if isinstance(data, MonitorInterventionDecided):
        return _decided(state, seen, data)
    if isinstance(data, MonitorInterventionOutcome):
        same = state.steering is not None and state.steering.correlation == data.correlation_id
        return replace(state, steering=None) if same else state
    return state


def _found(state: Watched, seen: Seen, data: FoundEvent) -> Watched:
    before = state.found
    if before is not None and before.event == seen.id:
        return state
    return replace(state, found=Found(data.rule, seen.at, before.times + 1 if before else 1, seen.id))


def _decided(state: Watched, seen: Seen, data: MonitorInterventionDecided) -> Watched:
    if data.message_id is None or state.steered >= data.intervention_number or state.streak is None:
        return state
    steering = Steering(
        correlation=data.correlation_id,
        message=data.message_id,
        text=data.message,
        rule=data.rule,
        number=data.intervention_number,
        decided_at=seen.at,
        call=state.streak.call,
        result=state.streak.result,
    )
    return replace(state, steering=steering, steered_at=seen.at, steered=data.intervention_number)
