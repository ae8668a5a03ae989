"""Computes the decisions of the monitor for stored events, without a broker and without effects. Pure, deterministic.

Each event is folded as the watch folds it. Every rule is evaluated after each event, and for the silence before it. So
the result depends only on the events and the rules, not on how events are batched. Decisions of the recorded monitor
are listed, but not folded in, because other rules may decide differently. Requests of users to it, such as muting a
rule, are folded in.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from monitor import decision_events, evaluation, guardian, housekeeping_findings
from monitor.evaluation import RuleFailedError, first_finding
from monitor.facts import SENDERS, USER_MESSAGES, Key, ObservedEvent
from monitor.rule_set import RuleSet
from monitor.rules.rule import AnyGuardianRule, GuardianRule, Pattern
from monitor.sandbox_state import ActedFinding, SandboxActivity, Steering
from monitor.state_fold import fold, fold_unchecked
from sandherd.contracts.events import EventData
from sandherd.contracts.events.conversation import AgentMessageInjected
from sandherd.contracts.events.message import MessageAcknowledged, MessageEvent, MessageQueued
from sandherd.contracts.events.monitor import (
    IdleFinding,
    MonitorGuardianAnalysed,
    MonitorInterventionDecided,
    MonitorInterventionOutcome,
    MonitorRuleMuted,
    MonitorRuleUnmuted,
)
from sandherd.contracts.events.sandbox import SandboxPaused, SandboxResumed, SandboxStopping
from sandherd.contracts.names import DerivedIds
from sandherd.contracts.replay import ReplayedFinding, ReplayedIntervention

_IDS: Final = DerivedIds(b"a replay sends nothing")
_MAX_DECISIONS: Final = 8
"""Maximum number of decisions after one event. It is reached only if rules fail."""
_RUNTIME_NAME: Final = "replay"
_LONG_AGO: Final = timedelta(days=3650)
"""How long the monitor has been watching, so that no rule waits for events after its start."""
_USER_REQUEST_EVENTS: Final = (MonitorRuleMuted, MonitorRuleUnmuted)
"""Events that the recorded monitor published because of a user's request, not by its own decision."""


@dataclass
class Simulation:
    """The replay of the events of one herd, oldest first."""

    rules: RuleSet
    findings: list[ReplayedFinding] = field(default_factory=list)
    interventions: list[ReplayedIntervention] = field(default_factory=list)
    recorded_findings: list[ReplayedFinding] = field(default_factory=list)
    recorded_interventions: list[ReplayedIntervention] = field(default_factory=list)
    count: int = 0
    _last_times: dict[Key, datetime] = field(default_factory=dict)
    _states: dict[Key, SandboxActivity] = field(default_factory=dict)
    _positions: dict[str, int] = field(default_factory=dict)
    _listed_patterns: set[tuple[Key, str, str, int]] = field(default_factory=set)
    _recorded_messages: set[str] = field(default_factory=set)
    _recorded_positions: dict[str, int] = field(default_factory=dict)

    @property
    def failed(self) -> dict[Key, list[str]]:
        """The rules that raised an error, with the error, by sandbox."""
        return {
            key: [f"{rule}: {reason}" for rule, reason in state.disabled.items()]
            for key, state in self._states.items()
            if state.disabled
        }

    @property
    def sandboxes(self) -> set[Key]:
        """The sandboxes that have published an event."""
        return set(self._states)

    def feed(self, event: ObservedEvent) -> int:
        """Fold the next event, and evaluate all rules. Returns the agent's turn after it."""
        self.count += 1
        key = event.project, event.entity
        # The file lacks the broker's time. The clocks of sources may differ, so time must not go backwards here.
        at = self._last_times[key] = max(event.at, self._last_times.get(key, event.at))
        event = replace(event, number=self.count, at=at)
        if event.type.startswith("monitor.") and not isinstance(event.data, _USER_REQUEST_EVENTS):
            self._list_recorded(event)
        elif not (isinstance(event.data, MessageEvent) and event.data.message_id in self._recorded_messages):
            self._step(key, event)
        state = self._states.get(key)
        return state.turn if state is not None else 0

    def _step(self, key: Key, event: ObservedEvent) -> None:
        self._run_housekeeping(key, event.at)
        state = fold(self._states.get(key), event, self.rules)
        if state is not None and _is_user_message(event):
            state = evaluation.new_episode(state, self.rules, event.at)
        if state is not None:
            self._states[key] = state
            self._intervene(key, event.at)

    # --- what the rules find -----------------------------------------------------------------------------------

    def _run_housekeeping(self, key: Key, now: datetime) -> None:
        state = self._states.get(key)
        if state is None or state.found is not None:
            return
        try:
            finding = housekeeping_findings.find(state, now, self.rules, now - _LONG_AGO)
        except RuleFailedError as failure:
            self._disable(key, failure)
            return
        if finding is not None:
            summary = f"since {finding.since.isoformat()}, limit {finding.limit:g} s"
            self.findings.append(self._finding(state, finding.rule, "housekeeping", now, summary=summary))
            self._states[key] = state.changed(found=ActedFinding(finding.rule, now, 1, None))

    def _list_patterns(self, key: Key, now: datetime) -> None:
        """List the findings of guardian rules, whether or not an action follows."""
        for active in self.rules.guardian:
            state = self._states[key]
            try:
                result = first_finding((active,), state, now)
                if result is not None:
                    assert isinstance(active.rule, GuardianRule)
                    self._list_pattern(state, active.rule, result[1], now)
            except RuleFailedError as failure:
                self._disable(key, failure)

    def _list_pattern(self, state: SandboxActivity, rule: AnyGuardianRule, pattern: Pattern, now: datetime) -> None:
        identity = (state.key, pattern.rule, pattern.key, pattern.began)
        if identity in self._listed_patterns:
            return
        self._listed_patterns.add(identity)
        reached = evaluation.reached_step(rule, pattern, self.rules)
        finding = self._finding(state, pattern.rule, "guardian", now, summary=pattern.summary)
        evidence = [str(id) for id in pattern.evidence]
        self.findings.append(finding.model_copy(update={"step": reached, "count": pattern.count, "evidence": evidence}))

    def _finding(self, state: SandboxActivity, rule: str, kind: str, at: datetime, *, summary: str) -> ReplayedFinding:
        return ReplayedFinding(
            project=state.project,
            sandbox=state.sandbox,
            rule=rule,
            kind=kind,
            at=at,
            event=self.count,
            turn=state.turn,
            summary=summary,
        )

    def _disable(self, key: Key, failure: RuleFailedError) -> None:
        self._states[key] = evaluation.without_rule(self._states[key], failure)

    # --- what the guardian does --------------------------------------------------------------------------------

    def _intervene(self, key: Key, now: datetime) -> None:
        """Conclude interventions and decide on new ones until nothing is left to do, as the watch after an event."""
        for _ in range(_MAX_DECISIONS):
            try:
                self._conclude(key, now)
                self._list_patterns(key, now)  # a rule may read the outcome
                decision = guardian.steer(self._states[key], now, self.rules, _IDS)
            except RuleFailedError as failure:
                self._disable(key, failure)
                continue
            if decision is None:
                return
            self._fold_produced(key, decision_events.analysis_event(decision), now)
            if decision.steering is not None:
                self._carry_out(key, decision.steering, now)

    def _conclude(self, key: Key, now: datetime) -> None:
        state = self._states[key]
        outcome = guardian.outcome(state, self.rules)
        if state.steering is None or outcome is None:
            return
        position = self._positions.pop(state.steering.correlation)
        self.interventions[position] = self.interventions[position].model_copy(update={"outcome": outcome})
        self._fold_produced(key, decision_events.outcome_event(state.steering, outcome), now)

    def _carry_out(self, key: Key, steering: Steering, now: datetime) -> None:
        """Fold in the effects of an intervention.

        A message is delivered immediately, a user resumes a paused sandbox, and a sandbox that is ended is stopping.
        """
        state = self._states[key]
        self._positions[steering.correlation] = len(self.interventions)
        self.interventions.append(
            ReplayedIntervention(
                project=state.project,
                sandbox=state.sandbox,
                rule=steering.rule,
                step=steering.step,
                at=now,
                event=self.count,
                turn=state.turn,
            )
        )
        self._fold_produced(key, decision_events.decision_event(steering), now)
        message = {"message_id": steering.message, "message_type": "guardian_nudge"}
        if steering.step in guardian.MESSAGE_STEPS:
            self._fold_produced(key, MessageQueued(**message, content_length=len(steering.text)), now)
            self._fold_produced(key, MessageAcknowledged(**message), now)
        elif steering.step == "pause":
            self._fold_produced(key, SandboxPaused(runtime=_RUNTIME_NAME), now)
            self._fold_produced(key, SandboxResumed(runtime=_RUNTIME_NAME), now)
        else:
            self._fold_produced(key, SandboxStopping(runtime=_RUNTIME_NAME, reason=steering.rule), now)

    def _fold_produced(self, key: Key, data: EventData, now: datetime) -> None:
        """Fold in an event that the replay itself has produced."""
        state = self._states[key]
        event = ObservedEvent(*key, data.type, self.count, now, data, _IDS.derive(now, *key, data.type, self.count))
        self._states[key] = fold_unchecked(state, event, self.rules)

    # --- what was recorded -------------------------------------------------------------------------------------

    def _list_recorded(self, event: ObservedEvent) -> None:
        """List the decisions that the recorded monitor published."""
        data, state = event.data, self._states.get((event.project, event.entity))
        turn = state.turn if state is not None else 0
        fields: dict[str, Any] = {"project": event.project, "sandbox": event.entity, "at": event.at, "turn": turn}
        fields["event"] = self.count
        match data:
            case MonitorGuardianAnalysed():
                details: dict[str, Any] = {"summary": data.summary, "evidence": data.evidence}
                finding = ReplayedFinding(**fields, rule=data.rule, kind="guardian", **details)
                self.recorded_findings.append(finding)
            case IdleFinding():
                self.recorded_findings.append(ReplayedFinding(**fields, rule=data.rule, kind="housekeeping"))
            case MonitorInterventionDecided():
                self._recorded_messages |= {data.message_id} if data.message_id else set()
                self._recorded_positions[data.correlation_id] = len(self.recorded_interventions)
                self.recorded_interventions.append(ReplayedIntervention(**fields, rule=data.rule, step=data.step))
            case MonitorInterventionOutcome() if data.correlation_id in self._recorded_positions:
                position = self._recorded_positions[data.correlation_id]
                intervention = self.recorded_interventions[position]
                outcome = "recovered" if data.recovered else data.outcome
                self.recorded_interventions[position] = intervention.model_copy(update={"outcome": outcome})
            case _:
                pass


def _is_user_message(event: ObservedEvent) -> bool:
    """Whether the worker reports that a user's message has reached the agent.

    The relay's event may be missing in a file, so the worker's event is used.
    """
    data = event.data
    return (
        isinstance(data, AgentMessageInjected) and data.message_type in USER_MESSAGES and data.sender_id not in SENDERS
    )
