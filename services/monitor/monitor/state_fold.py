"""Folds one event into the state of its sandbox: the facts first, then each rule's part. Pure.

The cost does not grow with the herd. The monitor's own events are folded in, too, so that a restarted monitor knows
what it has done already.
"""

from typing import Any, Final

from monitor import evaluation, file_edits, interventions, outages, sandbox_usage
from monitor.facts import USER_MESSAGES, EndedCall, Observation, ObservedEvent
from monitor.file_contents import content_changes
from monitor.rule_set import ALL, RuleSet
from monitor.sandbox_state import ActedFinding, Assignment, SandboxActivity
from monitor.tool_calls import after_call_end, after_call_start
from sandherd.contracts.events import EVENTS
from sandherd.contracts.events.agent import AgentEvent, AgentHeartbeat, AgentStarted, AgentTurnCompleted
from sandherd.contracts.events.message import ApprovalEvent, MessageAcknowledged, MessageEvent
from sandherd.contracts.events.monitor import (
    IdleFinding,
    MonitorFindingAssessed,
    MonitorGuardianAnalysed,
    MonitorInterventionDecided,
    MonitorInterventionOutcome,
    MonitorRuleMuted,
    MonitorRuleUnmuted,
)
from sandherd.contracts.events.sandbox import SandboxExtended, SandboxRefused, SandboxRequested, SandboxResumed
from sandherd.contracts.events.tools import AgentFileEdited
from sandherd.contracts.states import SANDBOX_ENDED, SandboxState

_LIVE_STATES: Final = frozenset({SandboxState.REQUESTED, SandboxState.SPAWNING, SandboxState.RUNNING})


def fold(state: SandboxActivity | None, event: ObservedEvent, rules: RuleSet = ALL) -> SandboxActivity | None:
    """The state after this event; None if it is not about a watched sandbox.

    An event that was folded in already changes nothing, so events may be repeated after a state was restored.
    """
    if state is None:
        state = _first_state(event)
        return _fold_event(state, event, rules, event.number) if state is not None else None
    return state if event.number <= state.number else _fold_event(state, event, rules, event.number)


def fold_unchecked(state: SandboxActivity, event: ObservedEvent, rules: RuleSet = ALL) -> SandboxActivity:
    """The state after this event. Does not check the event's `number`, and does not store it."""
    return _fold_event(state, event, rules, state.number)


def _fold_event(state: SandboxActivity, event: ObservedEvent, rules: RuleSet, number: int) -> SandboxActivity:
    state, call = state.draft(), None
    domain = "agent" if event.is_of_agent else event.type.partition(".")[0]
    if domain == "agent":
        state, call = _after_agent_event(state, event)
        state = _with_summary_fields(state, event, call)
    elif domain == "sandbox":
        state = _after_sandbox_event(state, event, rules)
    elif domain == "message":
        state = _after_message_event(state, event, rules)
    elif domain == "approval":
        state = _after_approval(state, event)
    elif domain == "task":
        state = _after_attempt_end(state, event)
    else:
        state = _after_own_event(state, event, rules)
    return evaluation.after_observation(state, Observation(event, call), rules, number).sealed()


def _first_state(event: ObservedEvent) -> SandboxActivity | None:
    """The empty state with which the watch of a sandbox begins; None for an event that does not start the watch.

    An event of the sandbox's worker starts the watch, and so does an event of the spawner that sets the sandbox's state
    or extends its lifetime. A message to the sandbox does not.
    """
    starts_watch = event.is_of_agent or _state_of(event) is not None or event.type == SandboxExtended.type
    if not starts_watch:
        return None
    return SandboxActivity(
        project=event.project,
        sandbox=event.entity,
        number=event.number,
        started_at=event.at,
        last_sign_at=event.at,
    )


def _after_agent_event(state: SandboxActivity, event: ObservedEvent) -> tuple[SandboxActivity, EndedCall | None]:
    """The state after an event of its worker, and the call that it ends."""
    model = EVENTS.get(event.type)
    changes = {"last_sign_at": event.at, **_progress_changes(state, event)}
    if event.taskid is not None and state.taskid is None:
        changes |= {"taskid": event.taskid, "traceparent": event.traceparent}
    if model is None:
        return state.changed(**changes), None
    if model.counts_as_work:
        changes["last_work_at"] = event.at
    if event.type == AgentTurnCompleted.type:
        # The agent no longer waits for an approval of an ended turn, even if that is answered later.
        changes["in_flight"] = {key: call for key, call in state.in_flight.items() if not call.waits}
    if model.terminal and state.finished_at is None:
        changes |= {"finished_at": event.at, "steering": interventions.after_end(state, event, ended=False)}
    return _after_call_event(state.changed(**changes), event, model.opens, model.closes)


def _progress_changes(state: SandboxActivity, event: ObservedEvent) -> dict[str, Any]:
    """The fields that the content of a worker's event changes, except those of calls."""
    data, changes = event.data, dict[str, Any]()
    if event.type == AgentHeartbeat.type:
        changes["last_heartbeat_at"] = event.at
    if isinstance(data, AgentHeartbeat):
        changes["spool"] = data.spool_depth
    if isinstance(data, AgentStarted):
        changes["task_kind"] = data.task_kind
    if isinstance(data, AgentFileEdited):
        changes |= content_changes(state, data)
    if isinstance(data, AgentEvent) and data.turn > state.turn:
        changes["turn"] = data.turn
    return changes


def _with_summary_fields(state: SandboxActivity, event: ObservedEvent, call: EndedCall | None) -> SandboxActivity:
    """The state after a worker's event, with the fields that summaries show."""
    outage = outages.after_event(state.outage, event, call)
    if outage is not state.outage:
        state = state.changed(outage=outage)
    progress = sandbox_usage.after_event(state.progress, event, call)
    if isinstance(event.data, AgentFileEdited):
        return state.changed(progress=progress, edits=file_edits.after_edit(state.edits, event))
    if isinstance(event.data, AgentStarted) and state.assignment is None:
        return state.changed(progress=progress, assignment=Assignment.of(event.data))
    return state if progress is state.progress else state.changed(progress=progress)


def _after_call_event(
    state: SandboxActivity, event: ObservedEvent, opens: str | None, closes: str | None
) -> tuple[SandboxActivity, EndedCall | None]:
    if event.data is None:
        return state, None
    if opens is not None:
        return after_call_start(state, event, event.data, opens), None
    return after_call_end(state, event, event.data, closes) if closes is not None else (state, None)


def _after_approval(state: SandboxActivity, event: ObservedEvent) -> SandboxActivity:
    """The state after an event of an approval.

    If it was granted, denied or expired, the time in flight of all other calls counts from now (`rules.stuck`).
    """
    model = EVENTS.get(event.type)
    if isinstance(event.data, ApprovalEvent):
        state = interventions.after_approval_event(state, event.data)
    if model is None or model.closes is None:
        return state
    return _after_call_event(state.changed(answered_at=event.at), event, None, model.closes)[0]


def _after_sandbox_event(state: SandboxActivity, event: ObservedEvent, rules: RuleSet) -> SandboxActivity:
    changes = _spawner_changes(state, event)
    if event.taskid is not None and state.taskid is None:
        changes |= {"taskid": event.taskid, "traceparent": event.traceparent}
    state = state.changed(**changes)
    return interventions.after_resume(state, event, rules) if event.type == SandboxResumed.type else state


def _spawner_changes(state: SandboxActivity, event: ObservedEvent) -> dict[str, Any]:
    """The fields that an event of the spawner about a sandbox changes."""
    sign_change = {"last_sign_at": max(event.at, state.last_sign_at)}
    if isinstance(event.data, SandboxRequested):
        expiry = {"expires_at": state.expires_at or event.data.expires_at}
        limits = {"linger": event.data.linger_seconds, "max_step": event.data.max_intervention}
        return sign_change | expiry | limits | {"alone": event.taskid is None, "budget": event.data.budget}
    if isinstance(event.data, SandboxExtended):
        return {"expires_at": event.data.expires_at}
    if isinstance(event.data, SandboxRefused):
        return {"steering": interventions.after_refusal(state, event.data)}
    return _state_changes(state, event, sign_change)


def _state_changes(state: SandboxActivity, event: ObservedEvent, sign_change: dict[str, Any]) -> dict[str, Any]:
    """The fields that change with the sandbox's state."""
    new_state = _state_of(event)
    if new_state in _LIVE_STATES:
        resumed_at = event.at if event.type == SandboxResumed.type else state.resumed_at
        return sign_change | {
            "paused": False,
            "resumed_at": resumed_at,
            "progress": sandbox_usage.after_resume(state.progress, event.at),
        }
    if new_state is SandboxState.PAUSED:
        progress = sandbox_usage.after_pause(state.progress, event.at)
        return {"paused": True, "progress": progress, "steering": interventions.after_pause(state)}
    if new_state is SandboxState.STOPPING:
        return {"stopping": True}
    if new_state not in SANDBOX_ENDED:
        return {}
    return {"ended": True, "steering": interventions.after_end(state, event, ended=True)}


def _state_of(event: ObservedEvent) -> SandboxState | None:
    """The state that an event of the spawner sets on the sandbox, if any."""
    model = EVENTS.get(event.type)
    state = model.sets_state if model is not None else None
    return state if isinstance(state, SandboxState) else None


def _after_attempt_end(state: SandboxActivity, event: ObservedEvent) -> SandboxActivity:
    """The state after the spawner has ended the attempt, which counts as the end of its agent.

    The next attempt has another sandbox.
    """
    if state.finished_at is not None:
        return state
    return state.changed(finished_at=event.at, steering=interventions.after_end(state, event, ended=False))


def _after_message_event(state: SandboxActivity, event: ObservedEvent, rules: RuleSet) -> SandboxActivity:
    data = event.data
    if not isinstance(data, MessageEvent):
        return state
    state_with_delivery = interventions.after_message_event(state, event, data)
    if state_with_delivery is not None and data.message_type == "guardian_nudge":
        return state_with_delivery
    state = state_with_delivery or state
    if not isinstance(data, MessageAcknowledged) or interventions.is_from_monitor(state, data):
        return state
    state = state.changed(last_message_at=event.at)
    return evaluation.new_episode(state, rules, event.at) if data.message_type in USER_MESSAGES else state


def _after_own_event(state: SandboxActivity, event: ObservedEvent, rules: RuleSet) -> SandboxActivity:
    match event.data:
        case IdleFinding() as data:
            return _with_finding(state, event, data)
        case MonitorInterventionDecided() as data:
            return interventions.after_decision(state, event, data, rules)
        case MonitorInterventionOutcome() as data:
            return interventions.after_outcome(state, event, data)
        case MonitorGuardianAnalysed() as data:
            return interventions.after_analysis(state, data)
        case MonitorFindingAssessed() | MonitorRuleMuted() | MonitorRuleUnmuted() as data:
            return interventions.after_assessment_or_muting(state, data)
        case _:
            return state


def _with_finding(state: SandboxActivity, event: ObservedEvent, data: IdleFinding) -> SandboxActivity:
    earlier = state.found
    if earlier is not None and earlier.event == event.id:
        return state
    return state.changed(found=ActedFinding(data.rule, event.at, earlier.times + 1 if earlier else 1, event.id))
