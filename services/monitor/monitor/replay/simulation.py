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
from monitor.evaluation import RuleFailedError, first_found
from monitor.facts import OF_USERS, SENDERS, Key, ObservedEvent
from monitor.rule_set import RuleSet
from monitor.rules.rule import AnyGuardianRule, GuardianRule, Pattern
from monitor.sandbox_state import ActedFinding, SandboxActivity, Steering
from monitor.state_fold import fold, step
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
_RUNTIME: Final = "replay"
_ALWAYS: Final = timedelta(days=3650)
_OF_USERS: Final = (MonitorRuleMuted, MonitorRuleUnmuted)
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
    _times: dict[Key, datetime] = field(default_factory=dict)
    _live: dict[Key, SandboxActivity] = field(default_factory=dict)
    _decided: dict[str, int] = field(default_factory=dict)
    _found: set[tuple[Key, str, str, int]] = field(default_factory=set)
    _messages: set[str] = field(default_factory=set)
    _recorded: dict[str, int] = field(default_factory=dict)

    @property
    def failed(self) -> dict[Key, list[str]]:
        """The rules that raised an error, with the error, by sandbox."""
        return {
            key: [f"{rule}: {reason}" for rule, reason in state.disabled.items()]
            for key, state in self._live.items()
            if state.disabled
        }

    @property
    def sandboxes(self) -> set[Key]:
        """The sandboxes that have published an event."""
        return set(self._live)

    def feed(self, event: ObservedEvent) -> int:
        """Fold the next event, and evaluate all rules. Returns the agent's turn after it."""
        self.count += 1
        key = event.project, event.entity
        # The monitor decides by the broker's time, which the document lacks. Clocks of several sources may differ.
        at = self._times[key] = max(event.at, self._times.get(key, event.at))
        event = replace(event, number=self.count, at=at)
        if event.type.startswith("monitor.") and not isinstance(event.data, _OF_USERS):
            self._record(event)
        elif not (isinstance(event.data, MessageEvent) and event.data.message_id in self._messages):
            self._step(key, event)
        state = self._live.get(key)
        return state.turn if state is not None else 0

    def _step(self, key: Key, event: ObservedEvent) -> None:
        self._housekeeping(key, event.at)
        state = fold(self._live.get(key), event, self.rules)
        if state is not None and _is_of_user(event):
            state = evaluation.new_episode(state, self.rules, event.at)
        if state is not None:
            self._live[key] = state
            self._intervene(key, event.at)

    # --- what the rules find -----------------------------------------------------------------------------------

    def _housekeeping(self, key: Key, now: datetime) -> None:
        state = self._live.get(key)
        if state is None or state.found is not None:
            return
        try:
            finding = housekeeping_findings.find(state, now, self.rules, now - _ALWAYS)
        except RuleFailedError as failure:
            self._disable(key, failure)
            return
        if finding is not None:
            summary = f"since {finding.since.isoformat()}, limit {finding.limit:g} s"
            self.findings.append(self._finding(state, finding.rule, "housekeeping", now, summary=summary))
            self._live[key] = state.changed(found=ActedFinding(finding.rule, now, 1, None))

    def _list_patterns(self, key: Key, now: datetime) -> None:
        """List the findings of guardian rules, whether or not an action follows."""
        for active in self.rules.guardian:
            state = self._live[key]
            try:
                found = first_found((active,), state, now)
                if found is not None:
                    assert isinstance(active.rule, GuardianRule)
                    self._list_pattern(state, active.rule, found[1], now)
            except RuleFailedError as failure:
                self._disable(key, failure)

    def _list_pattern(self, state: SandboxActivity, rule: AnyGuardianRule, pattern: Pattern, now: datetime) -> None:
        identity = (state.key, pattern.rule, pattern.key, pattern.began)
        if identity in self._found:
            return
        self._found.add(identity)
        reached = evaluation.reached(rule, pattern, self.rules)
        new = self._finding(state, pattern.rule, "guardian", now, summary=pattern.summary)
        cited = [str(id) for id in pattern.evidence]
        self.findings.append(new.model_copy(update={"step": reached, "count": pattern.count, "evidence": cited}))

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
        self._live[key] = evaluation.disabled(self._live[key], failure)

    # --- what the guardian does --------------------------------------------------------------------------------

    def _intervene(self, key: Key, now: datetime) -> None:
        """Publish outcomes and decide until there is nothing more to do, as the watch does after an event."""
        for _ in range(_MAX_DECISIONS):
            try:
                self._conclude(key, now)
                self._list_patterns(key, now)  # a rule may read the outcome
                decision = guardian.steer(self._live[key], now, self.rules, _IDS)
            except RuleFailedError as failure:
                self._disable(key, failure)
                continue
            if decision is None:
                return
            self._fold_own(key, decision_events.analysed(decision), now)
            if decision.steering is not None:
                self._carry_out(key, decision.steering, now)

    def _conclude(self, key: Key, now: datetime) -> None:
        state = self._live[key]
        outcome = guardian.outcome(state, self.rules)
        if state.steering is None or outcome is None:
            return
        place = self._decided.pop(state.steering.correlation)
        self.interventions[place] = self.interventions[place].model_copy(update={"outcome": outcome})
        self._fold_own(key, decision_events.concluded(state.steering, outcome), now)

    def _carry_out(self, key: Key, steering: Steering, now: datetime) -> None:
        """Fold in the effects of an intervention.

        A message is delivered immediately, a user resumes a paused sandbox, and a sandbox that is ended is stopping.
        """
        state = self._live[key]
        self._decided[steering.correlation] = len(self.interventions)
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
        self._fold_own(key, decision_events.decided(steering), now)
        message = {"message_id": steering.message, "message_type": "guardian_nudge"}
        if steering.step in guardian.MESSAGES:
            self._fold_own(key, MessageQueued(**message, content_length=len(steering.text)), now)
            self._fold_own(key, MessageAcknowledged(**message), now)
        elif steering.step == "pause":
            self._fold_own(key, SandboxPaused(runtime=_RUNTIME), now)
            self._fold_own(key, SandboxResumed(runtime=_RUNTIME), now)
        else:
            self._fold_own(key, SandboxStopping(runtime=_RUNTIME, reason=steering.rule), now)

    def _fold_own(self, key: Key, data: EventData, now: datetime) -> None:
        """Fold in an event that the replay itself has produced."""
        state = self._live[key]
        seen = ObservedEvent(*key, data.type, self.count, now, data, _IDS.derive(now, *key, data.type, self.count))
        self._live[key] = step(state, seen, self.rules)

    # --- what was recorded -------------------------------------------------------------------------------------

    def _record(self, event: ObservedEvent) -> None:
        """List the decisions that the recorded monitor published."""
        data, state = event.data, self._live.get((event.project, event.entity))
        turn = state.turn if state is not None else 0
        where: dict[str, Any] = {"project": event.project, "sandbox": event.entity, "at": event.at, "turn": turn}
        where["event"] = self.count
        match data:
            case MonitorGuardianAnalysed():
                about: dict[str, Any] = {"summary": data.summary, "evidence": data.evidence}
                found = ReplayedFinding(**where, rule=data.rule, kind="guardian", **about)
                self.recorded_findings.append(found)
            case IdleFinding():
                self.recorded_findings.append(ReplayedFinding(**where, rule=data.rule, kind="housekeeping"))
            case MonitorInterventionDecided():
                self._messages |= {data.message_id} if data.message_id else set()
                self._recorded[data.correlation_id] = len(self.recorded_interventions)
                self.recorded_interventions.append(ReplayedIntervention(**where, rule=data.rule, step=data.step))
            case MonitorInterventionOutcome() if data.correlation_id in self._recorded:
                place = self._recorded[data.correlation_id]
                known = self.recorded_interventions[place]
                outcome = "recovered" if data.recovered else data.outcome
                self.recorded_interventions[place] = known.model_copy(update={"outcome": outcome})
            case _:
                pass


def _is_of_user(event: ObservedEvent) -> bool:
    """Whether the worker reports that a user's message has reached the agent.

    The relay's event may be missing in a file, so the worker's event is used.
    """
    data = event.data
    return isinstance(data, AgentMessageInjected) and data.message_type in OF_USERS and data.sender_id not in SENDERS
