"""Decides whether a sandbox is to be ended: by the first housekeeping rule whose condition holds. Pure."""

from datetime import datetime

from monitor.evaluation import call, first_finding, part_of
from monitor.rule_set import RuleSet
from monitor.rules.rule import REPEAT_AFTER, AnyHousekeepingRule, Finding, HousekeepingRule
from monitor.sandbox_state import SandboxActivity
from sandherd.contracts.events.monitor import IdleFinding
from sandherd.contracts.records import SharedSandboxRecord
from sandherd.contracts.states import SANDBOX_ENDING


def find(state: SandboxActivity, now: datetime, rules: RuleSet, watching_since: datetime) -> Finding | None:
    """The finding to act upon now, if any. Raises `RuleFailedError`.

    After a start or an outage of the broker, missing events prove nothing. Rules that conclude from silence wait for
    `rules.silence`, within which a live worker must have published. A finding is repeated only after `REPEAT_AFTER`. A
    sandbox that is stopping is left to the spawner.
    """
    if state.ended or state.stopping or _was_found_recently(state, now):
        return None
    just_started = now - watching_since < rules.silence
    result = first_finding(rules.not_from_silence if just_started else rules.housekeeping, state, now)
    return result[1] if result is not None else None


def still_holds(finding: Finding, recorded: SharedSandboxRecord, now: datetime, rules: RuleSet) -> bool:
    """Whether a finding still holds by the spawner's record. Raises `RuleFailedError`.

    A sandbox that is ending is left to the spawner.
    """
    rule = _rule_of(finding, rules)
    return recorded.state not in SANDBOX_ENDING and call(rule, "confirms", rule.confirms, recorded, now)


def event_of(finding: Finding, state: SandboxActivity, now: datetime, rules: RuleSet) -> IdleFinding:
    """The event of a finding. Raises `RuleFailedError`."""
    rule = _rule_of(finding, rules)
    return call(rule, "event", rule.event, part_of(state, rule, rules), finding, now)


def _rule_of(finding: Finding, rules: RuleSet) -> AnyHousekeepingRule:
    rule = rules.by_name[finding.rule]
    assert isinstance(rule, HousekeepingRule)
    return rule


def _was_found_recently(state: SandboxActivity, now: datetime) -> bool:
    return state.found is not None and (now - state.found.at).total_seconds() < REPEAT_AFTER
