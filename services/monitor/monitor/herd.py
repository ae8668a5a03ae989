"""The sandboxes that are watched: live ones, recently ended ones, and the position up to which the stream was read."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final
from uuid import UUID

from monitor import interventions, notices
from monitor.assessment.allowance import TokenAllowance
from monitor.evaluation import RuleFailedError, without_rule
from monitor.facts import Key, ObservedEvent
from monitor.notices import Notice
from monitor.rule_set import ALL, RuleSet
from monitor.sandbox_state import SandboxActivity
from monitor.state_fold import fold, fold_unchecked
from sandherd.contracts.events.agent import AgentHeartbeat
from sandherd.contracts.events.monitor import MonitorFindingAssessed

MAX_TOMBSTONES: Final = 10_000
"""Maximum number of ended sandboxes that are remembered."""


class Herd:
    """The states of all live sandboxes. The cost of an event does not depend on their number."""

    def __init__(
        self,
        position: int = 0,
        live: Iterable[SandboxActivity] = (),
        ended_keys: Iterable[Key] = (),
        pending: Iterable[Notice] = (),
        unwritten: Iterable[SandboxActivity] = (),
        *,
        allowance: TokenAllowance | None = None,
        rules: RuleSet = ALL,
    ) -> None:
        self.rules = rules
        self.position = position
        """The stream sequence of the last event that was read."""
        self.live: dict[Key, SandboxActivity] = {state.key: state for state in live}
        self.ended: OrderedDict[Key, None] = OrderedDict.fromkeys(ended_keys)
        """Sandboxes that ended recently, so that a late event does not add them again."""
        self.notices: dict[UUID, Notice] = {notice.cause: notice for notice in pending}
        """The notices that are not published yet, by the ids of the events that caused them."""
        self.changed: set[Key] = set(self.live)
        """Live sandboxes whose summary may have changed since it was written."""
        self.unwritten: dict[Key, SandboxActivity] = {state.key: state for state in unwritten}
        """Ended sandboxes whose last summary is not written yet."""
        self.allowance = allowance or TokenAllowance()
        """The tokens that the model for assessments has used."""
        self.failures: list[tuple[Key, str]] = []
        """The rules that were disabled and are to be reported, each with its sandbox."""

    def fold(self, event: ObservedEvent) -> SandboxActivity | None:
        """Fold one event in. Returns the state after it, or None if it is not about a watched sandbox."""
        if not event.is_of_agent:
            notices.fold(self.notices, event)
            if isinstance(event.data, MonitorFindingAssessed):
                self.allowance = self.allowance.with_used(event.data.tokens, event.at)
        key = event.project, event.entity
        if key in self.ended:
            return None
        before = self.live.get(key)
        state = fold(before, event, self.rules)
        if state is None:
            return None
        if event.type != AgentHeartbeat.type:
            self.changed.add(key)
        return self._store(key, before, state)

    def fold_published(self, key: Key, event: ObservedEvent) -> None:
        """Fold in an event that the monitor has just published.

        When it is read from the stream, it has no further effect.
        """
        state = self.live.get(key)
        if state is not None:
            self.changed.add(key)
            self._store(key, state, fold_unchecked(state, event, self.rules))

    def replace(self, state: SandboxActivity) -> None:
        """Replace the state of a sandbox that is still watched."""
        key = state.key
        if key in self.live:
            self._store(key, self.live[key], state)

    def disable(self, key: Key, failure: RuleFailedError) -> None:
        """Stop evaluating a rule for this sandbox, because it has failed."""
        state = self.live.get(key)
        if state is not None:
            self._store(key, state, without_rule(state, failure))

    def end(self, key: Key) -> None:
        """Record that a sandbox has ended, if this is known from another source than the stream.

        The sandbox is removed once its intervention has an outcome.
        """
        state = self.live.get(key)
        if state is not None:
            self.changed.add(key)
            self._store(key, state, state.changed(ended=True, steering=interventions.after_sandbox_end(state)))

    def remove(self, key: Key) -> None:
        """Stop watching a sandbox that has ended."""
        state = self.live.pop(key, None)
        self.changed.discard(key)
        if state is not None:
            self.unwritten[key] = state.changed(ended=True)
        while len(self.unwritten) > MAX_TOMBSTONES:
            del self.unwritten[next(iter(self.unwritten))]
        self.ended[key] = None
        while len(self.ended) > MAX_TOMBSTONES:
            self.ended.popitem(last=False)

    def _store(self, key: Key, before: SandboxActivity | None, state: SandboxActivity) -> SandboxActivity:
        """Store the state, unless its sandbox has ended and no outcome of an intervention is pending."""
        if state.disabled and (before is None or before.disabled is not state.disabled):
            known_failures = before.disabled if before is not None else {}
            self.failures += [(key, rule) for rule in state.disabled if rule not in known_failures]
        self.live[key] = state
        if state.ended and state.steering is None:
            self.remove(key)
        return state
