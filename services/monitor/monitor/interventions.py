"""Folds the events of an intervention: its decision, its delivery, a user's answer, and its outcome. Pure."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final
from uuid import UUID

from monitor import evaluation
from monitor.evaluation import RuleFailedError
from monitor.facts import ObservedEvent
from monitor.rule_set import RuleSet
from monitor.sandbox_state import (
    MAX_CITED,
    MAX_INTERVENTIONS,
    Intervention,
    ObservedState,
    Outcome,
    SandboxActivity,
    Steering,
)
from sandherd.contracts.commands import PauseSandbox
from sandherd.contracts.events.agent import AgentCompleted
from sandherd.contracts.events.message import (
    ApprovalDenied,
    ApprovalEvent,
    ApprovalExpired,
    ApprovalGranted,
    ApprovalRequested,
    MessageAcknowledged,
    MessageEvent,
    MessageExpired,
    MessageQueued,
    MessageRejected,
)
from sandherd.contracts.events.monitor import (
    MonitorFindingAssessed,
    MonitorGuardianAnalysed,
    MonitorInterventionDecided,
    MonitorInterventionOutcome,
    MonitorRuleMuted,
    MonitorRuleUnmuted,
)
from sandherd.contracts.events.sandbox import SandboxRefused

MAX_MUTED: Final = 64
_MAX_OBSERVED: Final = 16


def is_from_monitor(state: SandboxActivity, data: MessageEvent) -> bool:
    """Whether a message is one of the monitor's own interventions."""
    messages = (intervention.message for intervention in state.interventions)
    return data.message_type == "guardian_nudge" or data.message_id in messages


def after_message_event(state: SandboxActivity, event: ObservedEvent, data: MessageEvent) -> SandboxActivity | None:
    """The state after an event of the intervention's message, or of a user's instruction; None for another message."""
    steering = state.steering
    if steering is None:
        return None
    if data.message_id == steering.message:
        return state.changed(steering=_delivery_progress(steering, event, data, state.turn))
    if data.message_id == steering.instruction_message and isinstance(data, MessageQueued | MessageRejected):
        return state.changed(steering=replace(steering, instructed=True, sent_at=None))
    return None


def _delivery_progress(steering: Steering, event: ObservedEvent, data: MessageEvent, turn: int) -> Steering:
    if isinstance(data, MessageQueued):
        return replace(steering, taken=True)
    if isinstance(data, MessageAcknowledged):
        if steering.received_at is not None:
            return steering
        return replace(steering, taken=True, received_at=event.at, clear_turn=turn)
    if isinstance(data, MessageRejected | MessageExpired):
        return replace(steering, taken=True, outcome=steering.outcome or "undelivered")
    return steering


def after_end(state: SandboxActivity, event: ObservedEvent, *, ended: bool) -> Steering | None:
    """The intervention after its agent or its sandbox has ended.

    If the agent was not resumed from a pause, the pause first has to be cancelled and its approval withdrawn, unless
    the sandbox has ended.
    """
    steering = state.steering
    if steering is None or steering.outcome is not None:
        return steering
    if not ended and steering.step == "pause" and steering.received_at is None:
        return replace(steering, sent_at=None)
    has_obeyed = event.type == AgentCompleted.type and steering.received_at is not None and steering.others > 0
    return replace(steering, outcome="obeyed" if has_obeyed else "finished")


def after_sandbox_end(state: SandboxActivity) -> Steering | None:
    """The intervention after its sandbox has ended, by the spawner's record."""
    steering = state.steering
    return steering if steering is None or steering.outcome is not None else replace(steering, outcome="finished")


def after_pause(state: SandboxActivity) -> Steering | None:
    """The intervention after its sandbox was paused."""
    steering = state.steering
    if steering is None or steering.step != "pause" or steering.taken:
        return steering
    return replace(steering, taken=True, sent_at=None)


def after_resume(state: SandboxActivity, event: ObservedEvent, rules: RuleSet) -> SandboxActivity:
    """The state after its sandbox was resumed: by the answer to a pause, or by a user, which counts as the answer.

    The user who resumes the agent knows the pattern, so a new episode begins and the count starts again.
    """
    steering = state.steering
    if steering is None or steering.step != "pause" or not steering.taken or steering.received_at is not None:
        return state
    if state.finished_at is not None:
        return state
    continued = replace(steering, received_at=event.at, clear_turn=state.turn, sent_at=None)
    return evaluation.new_episode(state.changed(steering=continued), rules, event.at)


def after_refusal(state: SandboxActivity, data: SandboxRefused) -> Steering | None:
    """The intervention after a command about its sandbox was refused. A refused pause counts as undelivered."""
    steering = state.steering
    is_awaited = steering is not None and steering.step == "pause" and not steering.taken and steering.outcome is None
    if steering is None or not is_awaited or data.command != PauseSandbox.type:
        return steering
    return replace(steering, outcome="undelivered")


def after_approval_event(state: SandboxActivity, data: ApprovalEvent) -> SandboxActivity:
    """The state after an event of the approval that a pause has requested; unchanged for another approval."""
    steering = state.steering
    if steering is None or steering.approval is None or data.approval_id != steering.approval or steering.closed:
        return state
    return state.changed(steering=_with_answer(steering, data))


def _with_answer(steering: Steering, data: ApprovalEvent) -> Steering:
    if isinstance(data, ApprovalRequested):
        return replace(steering, requested=True, sent_at=None)
    closed = replace(steering, requested=True, closed=True, sent_at=None)
    if isinstance(data, ApprovalGranted):
        return replace(closed, answer="continue", by=data.by, instruction=data.reason or None)
    if isinstance(data, ApprovalDenied) and data.code is None:
        return replace(closed, answer="stop", by=data.by)
    return closed if isinstance(data, ApprovalDenied | ApprovalExpired) else steering


def after_analysis(state: SandboxActivity, data: MonitorGuardianAnalysed) -> SandboxActivity:
    """The state after a pattern was published. It is remembered if no intervention follows."""
    if data.needs_steering or data.pattern is None or data.steering_type is None:
        return state
    observed = ObservedState(data.rule, data.pattern, data.pattern_began or 0, data.steering_type)  # type: ignore[arg-type]  # published by the monitor
    if observed in state.observed:
        return state
    return state.changed(observed=(*state.observed, observed)[-_MAX_OBSERVED:])


def after_assessment_or_muting(
    state: SandboxActivity, data: MonitorFindingAssessed | MonitorRuleMuted | MonitorRuleUnmuted
) -> SandboxActivity:
    """The state after a model has assessed a finding of a rule, or a user has muted or unmuted a rule."""
    if isinstance(data, MonitorFindingAssessed):
        state = state.changed(assessed={**state.assessed, data.rule: data.verdict or "none"})
        if not data.through:
            return state
        return state.changed(assessed_through={**state.assessed_through, data.rule: data.through})
    rules = {name: until for name, until in state.muted.items() if name != data.rule}
    if isinstance(data, MonitorRuleMuted) and len(rules) < MAX_MUTED:
        rules[data.rule] = data.until
    return state.changed(muted=rules)


def after_decision(
    state: SandboxActivity, event: ObservedEvent, data: MonitorInterventionDecided, rules: RuleSet
) -> SandboxActivity:
    """The state after a decision to intervene; unchanged if it is already known.

    Decisions of an earlier version name their rule but no pattern.
    """
    if state.steered >= data.intervention_number:
        return state
    key = data.pattern
    if key is None:
        state, key = _current_pattern_key(state, data.rule, rules)
        if key is None:
            return state
    steering = Steering(
        correlation=data.correlation_id,
        message=data.message_id or f"msg-{UUID(data.correlation_id).hex}",
        text=data.message,
        rule=data.rule,
        number=data.intervention_number,
        decided_at=event.at,
        pattern=key,
        evidence=ids_of(data.evidence or ()),
        step=data.step,
        watched=data.pattern_rule or data.rule,
        approval=data.approval_id,
    )
    return with_intervention(state.changed(steering=_after_late_decision(state, steering)), steering)


def _after_late_decision(state: SandboxActivity, steering: Steering) -> Steering:
    """The intervention; `finished` if its decision is read after the end of its agent.

    A pause is not finished then, because it has to be cancelled.
    """
    is_over = state.ended or (state.finished_at is not None and steering.step != "pause")
    return replace(steering, outcome="finished") if is_over else steering


def _current_pattern_key(state: SandboxActivity, rule: str, rules: RuleSet) -> tuple[SandboxActivity, str | None]:
    """The state, and the key of the pattern that the rule sees at present; None if it sees none.

    The key is empty for a rule that is not active. A rule that fails is disabled in the state.
    """
    try:
        if not evaluation.is_active(rule, state, rules):
            return state, ""
        pattern = evaluation.current_pattern(rule, state, rules)
        return state, pattern.key if pattern is not None else None
    except RuleFailedError as failure:
        return evaluation.without_rule(state, failure), ""


def with_intervention(state: SandboxActivity, steering: Steering) -> SandboxActivity:
    """The state with a new intervention added to the remembered ones."""
    intervention = Intervention(
        number=steering.number,
        rule=steering.rule,
        step=steering.step,
        decided_at=steering.decided_at,
        watched=steering.watched,
        pattern=steering.pattern,
        correlation=steering.correlation,
        message=steering.message,
        evidence=steering.evidence[-MAX_CITED:],
        approval=steering.approval,
    )
    interventions = (*state.interventions, intervention)[-MAX_INTERVENTIONS:]
    return state.changed(interventions=interventions, steered_at=steering.decided_at, steered=steering.number)


def after_outcome(state: SandboxActivity, event: ObservedEvent, data: MonitorInterventionOutcome) -> SandboxActivity:
    """The state after an outcome was published."""
    steering = state.steering
    if steering is not None and steering.correlation == data.correlation_id:
        received_at, state = steering.received_at, state.changed(steering=None)
    else:
        received_at = None
    outcome: Outcome = "recovered" if data.recovered else data.outcome
    interventions = tuple(
        replace(intervention, outcome=outcome, outcome_at=event.at, received_at=received_at)
        if intervention.correlation == data.correlation_id and intervention.outcome is None
        else intervention
        for intervention in state.interventions
    )
    return state.changed(interventions=interventions)


def ids_of(texts: Iterable[str]) -> tuple[UUID, ...]:
    """The event ids in an event's evidence; invalid ids are left out."""
    ids: list[UUID] = []
    for text in texts:
        try:
            ids.append(UUID(text))
        except ValueError:
            continue
    return tuple(ids)
