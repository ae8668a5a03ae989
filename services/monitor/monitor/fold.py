"""Folds one event into the state of its sandbox: the facts first, then each rule's part. Pure.

The cost does not grow with the herd.

The monitor's own events are folded in too, so that a restarted monitor knows what it has done already.
"""

from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from monitor import edits, evaluation, usage
from monitor.calls import closed, opened
from monitor.contents import with_content
from monitor.evaluation import RuleFailedError
from monitor.facts import EndedCall, Observation, ObservedEvent
from monitor.rule_set import ALL, RuleSet
from monitor.state import ActedFinding, Assignment, SandboxActivity, Steering
from sandherd.contracts.events import EVENTS
from sandherd.contracts.events.agent import AgentEvent, AgentHeartbeat, AgentStarted, AgentTurnCompleted
from sandherd.contracts.events.message import (
    MessageAcknowledged,
    MessageEvent,
    MessageExpired,
    MessageQueued,
    MessageRejected,
)
from sandherd.contracts.events.monitor import IdleFinding, MonitorInterventionDecided, MonitorInterventionOutcome
from sandherd.contracts.events.sandbox import SandboxExtended, SandboxRequested, SandboxResumed
from sandherd.contracts.events.tools import AgentFileEdited
from sandherd.contracts.states import SANDBOX_ENDED, SandboxState

_OF_USERS: Final = frozenset({"user_message", "interrupt"})
_LIVE: Final = frozenset({SandboxState.REQUESTED, SandboxState.SPAWNING, SandboxState.RUNNING})


def fold(state: SandboxActivity | None, seen: ObservedEvent, rules: RuleSet = ALL) -> SandboxActivity | None:
    """The state after this event; None if it is about no sandbox that is watched.

    An event that was folded in already changes nothing, so that events may be repeated after a state was restored.
    """
    if state is None:
        state = _first_state(seen)
        return _step(state, seen, rules, seen.number) if state is not None else None
    return state if seen.number <= state.number else _step(state, seen, rules, seen.number)


def step(state: SandboxActivity, seen: ObservedEvent, rules: RuleSet = ALL) -> SandboxActivity:
    """The state after this event; the event's sequence is ignored."""
    return _step(state, seen, rules, state.number)


def _step(state: SandboxActivity, seen: ObservedEvent, rules: RuleSet, number: int) -> SandboxActivity:
    domain, call = seen.type.partition(".")[0], None
    if domain == "agent":
        state, call = _agent(state, seen)
        state = _summed_up(state, seen, call)
    elif domain == "sandbox":
        state = _sandbox(state, seen)
    elif domain == "message":
        state = _message(state, seen, rules)
    elif domain == "approval":
        state = _after_approval(state, seen)
    elif domain == "task":
        state = _after_attempt_end(state, seen)
    else:
        state = _own(state, seen, rules)
    return evaluation.folded(state, Observation(seen, call), rules, number)


def _first_state(seen: ObservedEvent) -> SandboxActivity | None:
    """A sandbox is watched from its first own event; messages to it and events about it do not start that."""
    own = seen.type.startswith("agent.") or _state_of(seen) is not None or seen.type == SandboxExtended.type
    if not own:
        return None
    return SandboxActivity(
        project=seen.project,
        sandbox=seen.entity,
        number=seen.number,
        started_at=seen.at,
        last_sign_at=seen.at,
    )


def _agent(state: SandboxActivity, seen: ObservedEvent) -> tuple[SandboxActivity, EndedCall | None]:
    """The state after an event of its worker, and the call that it ends."""
    model = EVENTS.get(seen.type)
    changes = {"last_sign_at": seen.at, **_progress(state, seen)}
    if seen.taskid is not None and state.taskid is None:
        changes |= {"taskid": seen.taskid, "traceparent": seen.traceparent}
    if model is None:
        return state.changed(**changes), None
    if model.counts_as_work:
        changes["last_work_at"] = seen.at
    if seen.type == AgentTurnCompleted.type:
        # An approval requested in an ended turn is no longer waited for, whenever it is answered.
        changes["in_flight"] = {key: call for key, call in state.in_flight.items() if not call.waits}
    if model.terminal and state.finished_at is None:
        changes |= {"finished_at": seen.at, "steering": _cut_short(state.steering, "finished")}
    return _calls(state.changed(**changes), seen, model.opens, model.closes)


def _progress(state: SandboxActivity, seen: ObservedEvent) -> dict[str, Any]:
    """What the content of an event of its worker changes, other than calls."""
    data, changes = seen.data, dict[str, Any]()
    if seen.type == AgentHeartbeat.type:
        changes["last_heartbeat_at"] = seen.at
    if isinstance(data, AgentHeartbeat):
        changes["spool"] = data.spool_depth
    if isinstance(data, AgentStarted):
        changes["task_kind"] = data.task_kind
    if isinstance(data, AgentFileEdited):
        changes |= with_content(state, data)
    if isinstance(data, AgentEvent) and data.turn > state.turn:
        changes["turn"] = data.turn
    return changes


def _summed_up(state: SandboxActivity, seen: ObservedEvent, call: EndedCall | None) -> SandboxActivity:
    """The state with what a summary has of an event of its worker."""
    progress = usage.folded(state.progress, seen, call)
    if isinstance(seen.data, AgentFileEdited):
        return state.changed(progress=progress, edits=edits.folded(state.edits, seen))
    if isinstance(seen.data, AgentStarted) and state.assignment is None:
        return state.changed(progress=progress, assignment=Assignment.of(seen.data))
    return state if progress is state.progress else state.changed(progress=progress)


def _calls(
    state: SandboxActivity, seen: ObservedEvent, opens: str | None, closes: str | None
) -> tuple[SandboxActivity, EndedCall | None]:
    if seen.data is None:
        return state, None
    if opens is not None:
        return opened(state, seen, seen.data, opens), None
    return closed(state, seen, seen.data, closes) if closes is not None else (state, None)


def _after_approval(state: SandboxActivity, seen: ObservedEvent) -> SandboxActivity:
    """An approval was granted, denied or expired; a call that waited for it begins only now."""
    model = EVENTS.get(seen.type)
    if model is None or model.closes is None:
        return state
    return _calls(state.changed(answered_at=seen.at), seen, None, model.closes)[0]


def _sandbox(state: SandboxActivity, seen: ObservedEvent) -> SandboxActivity:
    changes = _changes(state, seen)
    if seen.taskid is not None and state.taskid is None:
        changes |= {"taskid": seen.taskid, "traceparent": seen.traceparent}
    return state.changed(**changes)


def _changes(state: SandboxActivity, seen: ObservedEvent) -> dict[str, Any]:
    """What an event of the spawner about a sandbox changes."""
    sign = {"last_sign_at": max(seen.at, state.last_sign_at)}
    if isinstance(seen.data, SandboxRequested):
        expires = {"expires_at": state.expires_at or seen.data.expires_at}
        known = {"budget": seen.data.budget, "linger": seen.data.linger_seconds, "alone": seen.taskid is None}
        return sign | expires | known
    if isinstance(seen.data, SandboxExtended):
        return {"expires_at": seen.data.expires_at}
    becomes = _state_of(seen)
    if becomes in _LIVE:
        resumed = seen.at if seen.type == SandboxResumed.type else state.resumed_at
        return sign | {"paused": False, "resumed_at": resumed, "progress": usage.resumed(state.progress, seen.at)}
    if becomes is SandboxState.PAUSED:
        return {"paused": True, "progress": usage.paused(state.progress, seen.at)}
    if becomes is SandboxState.STOPPING:
        return {"stopping": True}
    return {"ended": True, "steering": _cut_short(state.steering, "finished")} if becomes in SANDBOX_ENDED else {}


def _state_of(seen: ObservedEvent) -> SandboxState | None:
    """The state that an event of the spawner sets on the sandbox, if any."""
    model = EVENTS.get(seen.type)
    state = model.sets_state if model is not None else None
    return state if isinstance(state, SandboxState) else None


def _after_attempt_end(state: SandboxActivity, seen: ObservedEvent) -> SandboxActivity:
    """The spawner has ended its attempt: as if its agent had ended. The next attempt has another sandbox."""
    if state.finished_at is not None:
        return state
    return state.changed(finished_at=seen.at, steering=_cut_short(state.steering, "finished"))


def _message(state: SandboxActivity, seen: ObservedEvent, rules: RuleSet) -> SandboxActivity:
    data = seen.data
    if not isinstance(data, MessageEvent):
        return state
    steering = state.steering
    if steering is not None and data.message_id == steering.message:
        return state.changed(steering=_delivery_progress(steering, seen, data))
    if not isinstance(data, MessageAcknowledged) or data.message_type == "guardian_nudge":
        return state
    state = state.changed(last_message_at=seen.at)
    return evaluation.new_episode(state, rules, seen.at) if data.message_type in _OF_USERS else state


def _delivery_progress(steering: Steering, seen: ObservedEvent, data: MessageEvent) -> Steering:
    if isinstance(data, MessageQueued):
        return replace(steering, taken=True)
    if isinstance(data, MessageAcknowledged):
        return replace(steering, taken=True, received_at=steering.received_at or seen.at)
    if isinstance(data, MessageRejected | MessageExpired):
        return replace(steering, taken=True, outcome=steering.outcome or "undelivered")
    return steering


def _cut_short(steering: Steering | None, outcome: Any) -> Steering | None:
    if steering is None or steering.outcome is not None:
        return steering
    return replace(steering, outcome=outcome)


def _own(state: SandboxActivity, seen: ObservedEvent, rules: RuleSet) -> SandboxActivity:
    data = seen.data
    if isinstance(data, IdleFinding):
        return _found(state, seen, data)
    if isinstance(data, MonitorInterventionDecided):
        return _decided(state, seen, data, rules)
    if isinstance(data, MonitorInterventionOutcome):
        same = state.steering is not None and state.steering.correlation == data.correlation_id
        return state.changed(steering=None) if same else state
    return state


def _found(state: SandboxActivity, seen: ObservedEvent, data: IdleFinding) -> SandboxActivity:
    before = state.found
    if before is not None and before.event == seen.id:
        return state
    return state.changed(found=ActedFinding(data.rule, seen.at, before.times + 1 if before else 1, seen.id))


def _decided(
    state: SandboxActivity, seen: ObservedEvent, data: MonitorInterventionDecided, rules: RuleSet
) -> SandboxActivity:
    """The pattern of the nudge is that of its rule at this event; without one there is nothing to be obeyed."""
    if data.message_id is None or state.steered >= data.intervention_number:
        return state
    key, evidence = "", tuple[UUID, ...]()
    try:
        if evaluation.is_active(data.rule, state, rules):
            pattern = evaluation.pattern(data.rule, state, rules)
            if pattern is None:
                return state
            key, evidence = pattern.key, pattern.evidence
    except RuleFailedError as failure:
        state = evaluation.disabled(state, failure)
    steering = Steering(
        correlation=data.correlation_id,
        message=data.message_id,
        text=data.message,
        rule=data.rule,
        number=data.intervention_number,
        decided_at=seen.at,
        pattern=key,
        evidence=evidence,
    )
    return state.changed(steering=steering, steered_at=seen.at, steered=data.intervention_number)
