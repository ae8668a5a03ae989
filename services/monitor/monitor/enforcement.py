"""Evaluates the rules for one sandbox, and acts on their findings. Only the lease holder acts, one action at a time."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Final, TypeVar

from monitor import guardian, housekeeping_findings
from monitor.actions import Actions
from monitor.assessment.assessor import Assessor, Suspicion
from monitor.assessment.model_reply import Assessment
from monitor.evaluation import RuleFailedError
from monitor.facts import Key
from monitor.herd import Herd
from monitor.rules.rule import Finding
from monitor.sandbox_state import SandboxActivity
from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.bus.kv import read_record
from sandherd.bus.lease import Lease
from sandherd.contracts.records import SharedSandboxRecord
from sandherd.contracts.states import SANDBOX_ENDED
from sandherd.telemetry import logs
from sandherd.telemetry.meters import Meters

_READ_ERRORS: Final = (*BROKER_ERRORS, ValueError)
ResultT = TypeVar("ResultT")
_log: Final = logs.get("enforcement")


class Enforcement:
    """Acts for the sandboxes of a herd, by its rules."""

    def __init__(
        self,
        bus: Bus,
        lease: Lease,
        actions: Actions,
        meters: Meters,
        herd: Herd,
        *,
        assessor: Assessor | None = None,
    ) -> None:
        self._bus = bus
        self._lease = lease
        self._actions = actions
        self._meters = meters
        self._assessor = assessor
        self.herd = herd
        self._act_lock = asyncio.Lock()

    async def enforce(self, key: Key, now: datetime, watching_since: datetime | None) -> None:
        """Publish an outcome, intervene, or end the sandbox, if a rule requires it at `now`.

        No sandbox is ended before `watching_since` is known. Raises `LeaseLostError`.
        """
        async with self._act_lock:
            await self._publish_outcome(key, now)
            await self._steer(key, now)
            await self._send(key, now)
            self._suggest(key, now)
        if watching_since is not None:
            async with self._act_lock:
                await self._end(key, now, watching_since)
        self.report()

    def report(self) -> None:
        """Log and count the rules that have failed."""
        failures, self.herd.failures = self.herd.failures, []
        for key, rule in failures:
            project, sandbox = key
            state = self.herd.live.get(key)
            reason = state.disabled.get(rule) if state is not None else None
            _log.error(
                "rule failed, disabled for the sandbox", rule=rule, project=project, sandbox=sandbox, reason=reason
            )
            self._meters.count("sandherd_rules_disabled_total", rule=rule)

    def _decide_for(self, key: Key, decide: Callable[[SandboxActivity], ResultT]) -> ResultT | None:
        """The result of `decide` for the state of a sandbox; None if the sandbox is not watched any more.

        A rule that raises an error is disabled for the sandbox, and `decide` is called again.
        """
        while (state := self.herd.live.get(key)) is not None:
            try:
                return decide(state)
            except RuleFailedError as failure:
                self.herd.disable(key, failure)
        return None

    async def _end(self, key: Key, now: datetime, watching_since: datetime) -> None:
        rules = self.herd.rules
        finding = self._decide_for(key, lambda state: housekeeping_findings.find(state, now, rules, watching_since))
        state = self.herd.live.get(key)
        if state is None or finding is None or not await self._is_confirmed(state, finding, now):
            return
        self._lease.check()
        _log.info(
            "rule found a problem",
            rule=finding.rule,
            project=state.project,
            sandbox=state.sandbox,
            age=finding.age(now),
        )
        try:
            event = await self._actions.end(state, finding, now, rules)
        except RuleFailedError as failure:
            self.herd.disable(key, failure)
            return
        if event is not None:
            self.herd.fold_published(key, event)
            self._meters.count("sandherd_findings_total", rule=finding.rule)

    async def _is_confirmed(self, state: SandboxActivity, finding: Finding, now: datetime) -> bool:
        """Whether the spawner's record confirms the finding. If it can't be read, the finding waits."""
        try:
            recorded = await read_record(self._bus, SharedSandboxRecord, state.project, state.sandbox)
        except _READ_ERRORS as error:
            _log.warning("sandbox record unreadable, finding not acted upon", sandbox=state.sandbox, error=repr(error))
            return False
        if recorded is None or recorded.state in SANDBOX_ENDED:
            self.herd.end(state.key)
        try:
            return recorded is not None and housekeeping_findings.still_holds(finding, recorded, now, self.herd.rules)
        except RuleFailedError as failure:
            self.herd.disable(state.key, failure)
            return False

    async def _steer(self, key: Key, now: datetime) -> None:
        rules, ids = self.herd.rules, self._bus.ids
        decision = self._decide_for(key, lambda state: guardian.steer(state, now, rules, ids))
        state = self.herd.live.get(key)
        if state is None or decision is None:
            return
        self._lease.check()
        analysed = await self._actions.publish_pattern(state, decision, now)
        step, rule = "observe", decision.pattern.rule
        if decision.steering is None:
            self.herd.fold_published(key, analysed)
        else:
            step = decision.steering.step
            decided = await self._actions.publish_decision(state, decision.steering, now)
            if decided is None:
                _log.info("decision already stored, not repeated", sandbox=state.sandbox, rule=rule)
                return
            self.herd.fold_published(key, decided)
        _log.info("pattern found in an agent's behaviour", sandbox=state.sandbox, rule=rule, step=step)
        self._meters.count("sandherd_steerings_total", rule=rule, step=step)

    async def _send(self, key: Key, now: datetime) -> None:
        """Send the next command of an intervention, or send it again."""
        state = self.herd.live.get(key)
        sending = guardian.command_to_send(state, now) if state is not None else None
        if state is None or state.steering is None or sending is None:
            return
        self._lease.check()
        await self._actions.send(state, state.steering, sending, now)
        current = self.herd.live.get(key)  # events may have been read meanwhile
        if current is not None:
            self.herd.replace(guardian.after_command(current, sending, now))

    def _suggest(self, key: Key, now: datetime) -> None:
        """Request that the model assesses a soft pattern, if there is one."""
        if self._assessor is None:
            return
        pattern = self._decide_for(key, lambda state: guardian.suspicion(state, now, self.herd.rules))
        state = self.herd.live.get(key)
        if pattern is not None and state is not None:
            self._assessor.suggest(Suspicion(key, pattern, now, state.assessed_through.get(pattern.rule, 0)))

    async def publish_assessment(self, suspicion: Suspicion, assessment: Assessment) -> None:
        """Publish a model's verdict on a suspicion, unless it is known already. Raises `LeaseLostError`."""
        rule = suspicion.pattern.rule
        async with self._act_lock:
            state = self.herd.live.get(suspicion.key)
            if state is None or rule in state.assessed or self._assessor is None:
                return
            self._lease.check()
            now = max(suspicion.at, state.last_sign_at)
            event = await self._actions.publish_assessment(state, rule, self._assessor.name, assessment, now)
            if event is None:
                return
            self.herd.fold_published(suspicion.key, event)
            self._meters.count("sandherd_assessments_total", rule=rule, verdict=assessment.verdict or "none")

    async def _publish_outcome(self, key: Key, now: datetime) -> None:
        outcome = self._decide_for(key, lambda state: guardian.outcome(state, self.herd.rules))
        state = self.herd.live.get(key)
        if state is None or state.steering is None or outcome is None:
            return
        self._lease.check()
        event = await self._actions.publish_outcome(state, state.steering, outcome, now)
        if event is None:
            return
        self.herd.fold_published(key, event)
        self._meters.count("sandherd_interventions_total", rule=state.steering.rule, outcome=outcome)
