"""Folds one event into the state of its sandbox: the facts first, then each rule's part. Pure.

The cost does not grow with the herd. The monitor's own events are folded in, too, so that a restarted monitor knows
what it has done already.
"""

from typing import Any, Final

from monitor import evaluation, file_edits, interventions, outages, sandbox_usage
from monitor.facts import OF_USERS, EndedCall, Observation, ObservedEvent
from monitor.file_contents import content_changes
from monitor.rule_set import ALL, RuleSet
from monitor.sandbox_state import ActedFinding, Assignment, SandboxActivity
from monitor.tool_calls import closed, opened
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

_LIVE: Final = frozenset({SandboxState.REQUESTED, SandboxState.SPAWNING, SandboxState.RUNNING})


def fold(state: SandboxActivity | None, seen: ObservedEvent, rules: RuleSet = ALL) -> SandboxActivity | None:
    """The state after this event; None if it is not about a watched sandbox.

    An event that was folded in already changes nothing, so events may be repeated after a state was restored.
    """
    if state is None:
        state = _first_state(seen)
        return _step(state, seen, rules, seen.number) if state is not None else None
    return state if seen.number <= state.number else _step(state, seen, rules, seen.number)


def step(state: SandboxActivity, seen: ObservedEvent, rules: RuleSet = ALL) -> SandboxActivity:
    """The state after this event; the event's sequence is ignored."""
    return _step(state, seen, rules, state.number)


def _step(state: SandboxActivity, seen: ObservedEvent, rules: RuleSet, number: int) -> SandboxActivity:
    state, call = state.draft(), None
    domain = "agent" if seen.is_of_agent else seen.type.partition(".")[0]
    if domain == "agent":
        state, call = _agent(state, seen)
        state = _with_summary_fields(state, seen, call)
    elif domain == "sandbox":
        state = _sandbox(state, seen, rules)
    elif domain == "message":
        state = _message(state, seen, rules)
    elif domain == "approval":
        state = _after_approval(state, seen)
    elif domain == "task":
        state = _after_attempt_end(state, seen)
    else:
        state = _after_own_event(state, seen, rules)
    return evaluation.folded(state, Observation(seen, call), rules, number).sealed()


def _first_state(seen: ObservedEvent) -> SandboxActivity | None:
    """The state after the first event of a sandbox, which starts its watch; None for an event that starts no watch.

    An event of the sandbox's worker, or of the spawner about the sandbox, starts the watch. A message to it does not.
    """
    starts_watch = seen.is_of_agent or _state_of(seen) is not None or seen.type == SandboxExtended.type
    if not starts_watch:
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
        # The agent no longer waits for an approval of an ended turn, even if that is answered later.
        changes["in_flight"] = {key: call for key, call in state.in_flight.items() if not call.waits}
    if model.terminal and state.finished_at is None:
        changes |= {"finished_at": seen.at, "steering": interventions.cut_short(state, seen, ended=False)}
    return _calls(state.changed(**changes), seen, model.opens, model.closes)


def _progress(state: SandboxActivity, seen: ObservedEvent) -> dict[str, Any]:
    """The changed fields by the content of a worker's event, except those of calls."""
    data, changes = seen.data, dict[str, Any]()
    if seen.type == AgentHeartbeat.type:
        changes["last_heartbeat_at"] = seen.at
    if isinstance(data, AgentHeartbeat):
        changes["spool"] = data.spool_depth
    if isinstance(data, AgentStarted):
        changes["task_kind"] = data.task_kind
    if isinstance(data, AgentFileEdited):
        changes |= content_changes(state, data)
    if isinstance(data, AgentEvent) and data.turn > state.turn:
        changes["turn"] = data.turn
    return changes


def _with_summary_fields(state: SandboxActivity, seen: ObservedEvent, call: EndedCall | None) -> SandboxActivity:
    """The state after a worker's event, with the fields that summaries show."""
    outage = outages.folded(state.outage, seen, call)
    if outage is not state.outage:
        state = state.changed(outage=outage)
    progress = sandbox_usage.folded(state.progress, seen, call)
    if isinstance(seen.data, AgentFileEdited):
        return state.changed(progress=progress, edits=file_edits.folded(state.edits, seen))
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
    """The state after an event of an approval.

    If it was granted, denied or expired, calls that waited for it begin now.
    """
    model = EVENTS.get(seen.type)
    if isinstance(seen.data, ApprovalEvent):
        state = interventions.answered(state, seen.data)
    if model is None or model.closes is None:
        return state
    return _calls(state.changed(answered_at=seen.at), seen, None, model.closes)[0]


def _sandbox(state: SandboxActivity, seen: ObservedEvent, rules: RuleSet) -> SandboxActivity:
    changes = _changes(state, seen)
    if seen.taskid is not None and state.taskid is None:
        changes |= {"taskid": seen.taskid, "traceparent": seen.traceparent}
    state = state.changed(**changes)
    return interventions.resumed(state, seen, rules) if seen.type == SandboxResumed.type else state


def _changes(state: SandboxActivity, seen: ObservedEvent) -> dict[str, Any]:
    """The changed fields after an event of the spawner about a sandbox."""
    sign = {"last_sign_at": max(seen.at, state.last_sign_at)}
    if isinstance(seen.data, SandboxRequested):
        expires = {"expires_at": state.expires_at or seen.data.expires_at}
        about = {"linger": seen.data.linger_seconds, "max_step": seen.data.max_intervention}
        return sign | expires | about | {"alone": seen.taskid is None, "budget": seen.data.budget}
    if isinstance(seen.data, SandboxExtended):
        return {"expires_at": seen.data.expires_at}
    if isinstance(seen.data, SandboxRefused):
        return {"steering": interventions.refused(state, seen.data)}
    return _state_changes(state, seen, sign)


def _state_changes(state: SandboxActivity, seen: ObservedEvent, sign: dict[str, Any]) -> dict[str, Any]:
    """The changed fields after an event that sets the sandbox's state."""
    becomes = _state_of(seen)
    if becomes in _LIVE:
        resumed = seen.at if seen.type == SandboxResumed.type else state.resumed_at
        return sign | {
            "paused": False,
            "resumed_at": resumed,
            "progress": sandbox_usage.resumed(state.progress, seen.at),
        }
    if becomes is SandboxState.PAUSED:
        progress = sandbox_usage.paused(state.progress, seen.at)
        return {"paused": True, "progress": progress, "steering": interventions.paused(state)}
    if becomes is SandboxState.STOPPING:
        return {"stopping": True}
    if becomes not in SANDBOX_ENDED:
        return {}
    return {"ended": True, "steering": interventions.cut_short(state, seen, ended=True)}


def _state_of(seen: ObservedEvent) -> SandboxState | None:
    """The state that an event of the spawner sets on the sandbox, if any."""
    model = EVENTS.get(seen.type)
    state = model.sets_state if model is not None else None
    return state if isinstance(state, SandboxState) else None


def _after_attempt_end(state: SandboxActivity, seen: ObservedEvent) -> SandboxActivity:
    """The state after the spawner has ended the attempt, which counts as the end of its agent.

    The next attempt has another sandbox.
    """
    if state.finished_at is not None:
        return state
    return state.changed(finished_at=seen.at, steering=interventions.cut_short(state, seen, ended=False))


def _message(state: SandboxActivity, seen: ObservedEvent, rules: RuleSet) -> SandboxActivity:
    data = seen.data
    if not isinstance(data, MessageEvent):
        return state
    steered = interventions.delivered(state, seen, data)
    if steered is not None and data.message_type == "guardian_nudge":
        return steered
    state = steered or state
    if not isinstance(data, MessageAcknowledged) or interventions.is_of_monitor(state, data):
        return state
    state = state.changed(last_message_at=seen.at)
    return evaluation.new_episode(state, rules, seen.at) if data.message_type in OF_USERS else state


def _after_own_event(state: SandboxActivity, seen: ObservedEvent, rules: RuleSet) -> SandboxActivity:
    match seen.data:
        case IdleFinding() as data:
            return _found(state, seen, data)
        case MonitorInterventionDecided() as data:
            return interventions.decided(state, seen, data, rules)
        case MonitorInterventionOutcome() as data:
            return interventions.ended(state, seen, data)
        case MonitorGuardianAnalysed() as data:
            return interventions.analysed(state, data)
        case MonitorFindingAssessed() | MonitorRuleMuted() | MonitorRuleUnmuted() as data:
            return interventions.assessed_or_muted(state, data)
        case _:
            return state


def _found(state: SandboxActivity, seen: ObservedEvent, data: IdleFinding) -> SandboxActivity:
    before = state.found
    if before is not None and before.event == seen.id:
        return state
    return state.changed(found=ActedFinding(data.rule, seen.at, before.times + 1 if before else 1, seen.id))
