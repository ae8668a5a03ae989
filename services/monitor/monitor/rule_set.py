"""The rules that a monitor evaluates: their order, their thresholds, and which of them fold an event. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Generic, TypeVar

from monitor.facts import Facts
from monitor.rules import dead, registry
from monitor.rules.rule import AnyRule, Finding, GuardianRule, HousekeepingRule, Pattern, Thresholds
from sandherd.contracts.events import EVENTS
from sandherd.contracts.events.monitor import SteeringStep

FoundT = TypeVar("FoundT")
OFF: Final = "off"
_AGENT_PREFIX: Final = "agent."


@dataclass(frozen=True, slots=True)
class ActiveRule(Generic[FoundT]):
    """A rule with everything that its evaluation needs, so that no lookup is needed for each sandbox."""

    rule: AnyRule
    name: str
    evaluate: Callable[[Any, Facts, datetime, Any], FoundT | None]
    thresholds: Any
    new_part: Any


class RuleSet:
    """Rules, their thresholds, the cool-down between two interventions in seconds, and the herd's strongest step."""

    def __init__(
        self,
        rules: Sequence[AnyRule] = registry.RULES,
        thresholds: Mapping[str, Thresholds] | None = None,
        *,
        steering_cooldown: float = 300.0,
        max_step: SteeringStep = "nudge",
        assesses: bool = False,
    ) -> None:
        self.assesses = assesses
        """Whether there is a model that assesses soft patterns; without one, rules that require it are left out."""
        active = (rule for rule in rules if assesses or not (isinstance(rule, GuardianRule) and rule.requires_assessor))
        self.rules = tuple(sorted(active, key=lambda rule: rule.order))
        defaults: dict[str, Any] = {rule.name: rule.thresholds() for rule in rules}
        self.thresholds: Mapping[str, Any] = {**defaults, **(thresholds or {})}
        self.steering_cooldown = steering_cooldown
        self.max_step: SteeringStep = max_step
        self.by_name: Mapping[str, AnyRule] = {rule.name: rule for rule in self.rules}
        self.new_parts = {rule.name: rule.part() for rule in self.rules if rule.part is not None}
        self.reset_in_new_episode = frozenset(
            rule.name for rule in self.rules if isinstance(rule, GuardianRule) and not rule.across_episodes
        )
        """The rules whose parts are reset by a message of a user."""
        dead_after: float = self.thresholds[dead.RULE.name].after
        self.silence = timedelta(seconds=dead_after)
        """Maximum time between two events of a live sandbox."""
        housekeeping = [rule for rule in self.rules if isinstance(rule, HousekeepingRule)]
        self.housekeeping: Sequence[ActiveRule[Finding]] = self._active(housekeeping)
        self.not_from_silence: Sequence[ActiveRule[Finding]] = self._active(
            rule for rule in housekeeping if not rule.from_silence
        )
        """The housekeeping rules that do not conclude from missing events."""
        self.guardian: Sequence[ActiveRule[Pattern]] = self._active(
            rule for rule in self.rules if isinstance(rule, GuardianRule)
        )
        self.observing: Sequence[ActiveRule[Pattern]] = [
            active
            for active in self.guardian
            if isinstance(active.rule, GuardianRule) and set(active.rule.steps) == {"observe"}
        ]
        """The guardian rules whose patterns are published without an action."""
        self.soft: Sequence[ActiveRule[Pattern]] = [
            active
            for active in self.guardian
            if assesses and isinstance(active.rule, GuardianRule) and active.rule.soft
        ]
        """The guardian rules whose patterns the model assesses before an intervention."""
        self.prompt_rules: Sequence[ActiveRule[Finding | Pattern]] = self._active(
            rule for rule in self.rules if rule.prompt
        )
        self._rules_of_output = self._active(rule for rule in self.rules if rule.folds_output)
        self._rules_of_events = {name: self._rules_folding(name, of_calls=False) for name in EVENTS}
        self._rules_of_call_ends = {name: self._rules_folding(name, of_calls=True) for name in EVENTS}
        self._prompt_after = {name: self._prompt_rules(active) for name, active in self._rules_of_call_ends.items()}
        self._prompt_after_output = self._prompt_rules(self._rules_of_output)

    def _active(self, rules: Iterable[AnyRule]) -> tuple[ActiveRule[Any], ...]:
        return tuple(
            ActiveRule(rule, rule.name, rule.evaluate, self.thresholds[rule.name], self.new_parts.get(rule.name))
            for rule in rules
        )

    def rules_folding(self, event_type: str, *, ends_call: bool) -> Sequence[ActiveRule[Any]]:
        """The rules that fold an event of this type; an unknown type counts as output only."""
        rules = (self._rules_of_call_ends if ends_call else self._rules_of_events).get(event_type)
        if rules is not None:
            return rules
        return self._rules_of_output if event_type.startswith(_AGENT_PREFIX) else ()

    def prompt_rules_after(self, event_type: str) -> Sequence[ActiveRule[Finding | Pattern]]:
        """The prompt rules whose parts an event of an agent may change, by its type."""
        return self._prompt_after.get(event_type, self._prompt_after_output)

    def _prompt_rules(self, folding: Sequence[ActiveRule[Any]]) -> Sequence[ActiveRule[Any]]:
        return tuple(active for active in folding if active.rule.prompt)

    def _rules_folding(self, event_type: str, *, of_calls: bool) -> Sequence[ActiveRule[Any]]:
        output = event_type.startswith(_AGENT_PREFIX)
        return self._active(
            rule
            for rule in self.rules
            if EVENTS[event_type] in rule.reads or (of_calls and rule.folds_calls) or (output and rule.folds_output)
        )


ALL: Final = RuleSet()
"""All rules with their defaults."""
