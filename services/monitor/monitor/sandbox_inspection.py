"""The monitor's view of a sandbox, as `monitor.show` returns it. Pure."""

from datetime import datetime, timedelta
from typing import Any, Literal

from monitor import evaluation, intervention_ladder
from monitor.evaluation import RuleFailedError
from monitor.outages import OUTAGE
from monitor.rule_set import RuleSet
from monitor.rules.rule import AnyGuardianRule, AnyRule, GuardianRule, HousekeepingRule, Pattern
from monitor.sandbox_state import Intervention, SandboxActivity
from monitor.sandbox_summary import steering_of
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests.monitor import (
    FindingView,
    InterventionView,
    MonitorView,
    RuleProgress,
    WatchedCall,
)


def view(state: SandboxActivity, rules: RuleSet, now: datetime) -> MonitorView:
    """The view of one sandbox."""
    cooldown_ends_at = (
        None if state.steered_at is None else state.steered_at + timedelta(seconds=rules.steering_cooldown)
    )
    return MonitorView(
        project=state.project,
        sandbox=state.sandbox,
        task=state.taskid,
        as_of=now,
        phase=_phase(state),
        turn=state.turn,
        started_at=state.started_at,
        episode_at=state.episode_at,
        last_sign_at=state.last_sign_at,
        last_work_at=state.last_work_at,
        expires_at=state.expires_at,
        max_intervention=intervention_ladder.maximum_step(state, rules),
        steered_at=state.steered_at,
        next_after=cooldown_ends_at if cooldown_ends_at is not None and cooldown_ends_at > now else None,
        silent_for=max(0.0, (now - state.last_sign_at).total_seconds()),
        calls=sorted(
            (WatchedCall(tool=item.tool, since=item.begun_at, waits=item.waits) for item in state.in_flight.values()),
            key=lambda call: call.since,
        ),
        rules=[_progress(rule, state, rules, now) for rule in rules.rules],
        findings=[_finding(item) for item in current_findings(state, rules, now)],
        interventions=[_intervention(item, state) for item in state.interventions],
    )


def unknown_sandbox(sandbox: str, *, complete: bool) -> ContractError:
    """The error for a sandbox that is not watched. `complete` states whether all past events have been read."""
    if not complete:
        return ContractError(Code.BUSY, "the monitor still reads past events", remedy="try again in some seconds")
    remedy = "list the sandboxes; the events of one that has ended show what it did"
    message = f"the monitor watches no sandbox {sandbox}: it has ended, or there is none of this name"
    return ContractError(Code.NOT_FOUND, message, field="sandbox", remedy=remedy)


def _phase(state: SandboxActivity) -> Literal["running", "paused", "stopping", "finished", "ended"]:
    if state.ended:
        return "ended"
    if state.stopping:
        return "stopping"
    if state.paused:
        return "paused"
    return "finished" if state.finished_at is not None else "running"


def _progress(rule: AnyRule, state: SandboxActivity, rules: RuleSet, now: datetime) -> RuleProgress:
    identity: dict[str, Any] = {"rule": rule.name, "kind": rule.kind}
    if rule.name in state.disabled:
        return RuleProgress(**identity, state="disabled", disabled_reason=state.disabled[rule.name])
    try:
        fields = _count_fields(rule, state, rules, now)
    except RuleFailedError as failure:
        return RuleProgress(**identity, state="disabled", disabled_reason=failure.reason)
    if evaluation.is_muted(state, rule.name, now):
        fields |= {"state": "muted", "muted_until": state.muted[rule.name]}
    return RuleProgress(**identity, **fields)


def _count_fields(rule: AnyRule, state: SandboxActivity, rules: RuleSet, now: datetime) -> dict[str, Any]:
    if isinstance(rule, GuardianRule):
        pattern = evaluation.current_pattern(rule.name, state, rules)
        count = pattern.count if pattern is not None else 0
        step, threshold = _next_step(rule, count, rules.thresholds[rule.name])
        summary = pattern.summary if pattern is not None else ""
        return {"count": count, "threshold": threshold, "next_step": step, "summary": summary}
    assert isinstance(rule, HousekeepingRule)
    part = evaluation.part_of(state, rule, rules)
    finding = evaluation.call(rule, "decision", rule.evaluate, part, state, now, rules.thresholds[rule.name])
    if finding is None:
        return {}
    return {"count": finding.age(now), "threshold": finding.limit, "next_step": "terminate"}


def _next_step(rule: AnyGuardianRule, count: int, thresholds: Any) -> tuple[str | None, float | None]:
    """The first step that the count does not reach, and its threshold; None for both if it reaches all steps."""
    for step, name in rule.steps.items():
        threshold: float = getattr(thresholds, name)
        if count < threshold:
            return step, threshold
    return None, None


def current_findings(state: SandboxActivity, rules: RuleSet, now: datetime) -> list[Pattern]:
    """The present findings: the patterns of the rules, and an outage, for which no agent is steered."""
    outage = state.outage
    findings = patterns(state, rules, now)
    if outage is None or state.finished_at is not None:
        return findings
    return [*findings, Pattern(OUTAGE, OUTAGE, outage.since, 0, outage.count, outage.summary, outage.evidence)]


def patterns(state: SandboxActivity, rules: RuleSet, now: datetime) -> list[Pattern]:
    """The patterns that guardian rules find at present; muted and disabled rules are left out."""
    present: list[Pattern] = []
    for active in rules.guardian:
        if active.name in state.disabled or evaluation.is_muted(state, active.name, now):
            continue
        part = state.parts.get(active.name, active.new_part)
        try:
            pattern = evaluation.call(active.rule, "decision", active.evaluate, part, state, now, active.thresholds)
        except RuleFailedError:
            continue
        present += [pattern] if pattern is not None else []
    return present


def _finding(pattern: Pattern) -> FindingView:
    evidence = [str(id) for id in pattern.evidence]
    return FindingView(
        rule=pattern.rule, since=pattern.since, count=pattern.count, summary=pattern.summary, evidence=evidence
    )


def _intervention(intervention: Intervention, state: SandboxActivity) -> InterventionView:
    return InterventionView(
        **dict(steering_of(intervention, state)), evidence=[str(id) for id in intervention.evidence]
    )
