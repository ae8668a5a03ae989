"""A rule that raises is disabled for that sandbox, reported once, and affects nothing else."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import reduce
from types import MappingProxyType
from typing import Any

import pytest

from monitor.evaluation import RuleFailedError, without_rule
from monitor.facts import Facts, Observation
from monitor.guardian import GuardianDecision, outcome, steer
from monitor.herd import Herd
from monitor.housekeeping_findings import find
from monitor.replay.simulation import Simulation
from monitor.rule_set import ALL, RuleSet
from monitor.rules.rule import Documentation, Finding, GuardianRule, HousekeepingRule, Pattern, Thresholds
from monitor.sandbox_state import SandboxActivity
from monitor.snapshot import pack, unpack
from monitor.state_fold import fold
from monitor.urgency import is_urgent
from sandherd.contracts.events.agent import AgentWaiting
from sandherd.contracts.names import DerivedIds

Story = Any
After = Callable[[float], datetime]
IDS = DerivedIds(b"of the monitors")


class NoThresholds(Thresholds):
    """None."""


@dataclass(frozen=True, slots=True)
class Count:
    waits: int = 0


@dataclass(frozen=True)
class BadFold(GuardianRule[Count, NoThresholds]):
    """Raises when it folds the second time that an agent waits."""

    steps = MappingProxyType({"nudge": "none"})
    name = "bad_fold"
    order = 1
    thresholds = NoThresholds
    part = Count
    reads = (AgentWaiting,)
    documentation = Documentation("", "", "")

    def fold(self, part: Count, observation: Observation, facts: Facts) -> Count:
        assert isinstance(observation.event.data, AgentWaiting)
        return Count(part.waits + 1 // (1 - part.waits))

    def pattern(self, part: Count) -> Pattern | None:
        return None

    def evaluate(self, part: Count, facts: Facts, now: datetime, thresholds: NoThresholds) -> Pattern | None:
        return None

    def steering_text(self, part: Count) -> str:
        return ""

    def is_repeated(self, key: str, part: Count, observation: Observation) -> bool | None:
        return None

    def ignored_after(self, thresholds: NoThresholds) -> int:
        return 1


@dataclass(frozen=True)
class BadJudge(HousekeepingRule[None, NoThresholds]):
    """Raises for one sandbox."""

    name = "bad_judge"
    order = 2
    thresholds = NoThresholds
    from_silence = False
    documentation = Documentation("", "", "")

    def evaluate(self, part: None, facts: Facts, now: datetime, thresholds: NoThresholds) -> Finding | None:
        if facts.sandbox == "sbx-1":
            raise KeyError(facts.sandbox)
        return None


WITH_BAD = RuleSet([*ALL.rules, BadFold(), BadJudge()])


def herd_of(events: list[Any], herd: Herd | None = None) -> Herd:
    herd = herd or Herd(rules=WITH_BAD)
    for event in events:
        herd.fold(event)
    return herd


def test_rule_that_raises_in_fold_is_disabled_and_no_other(story: Story, after: After) -> None:
    """It is reported once. Other rules of that sandbox, and this rule for other sandboxes, are still evaluated."""
    herd = herd_of([replace(story.seen("agent.waiting"), data=AgentWaiting()) for _ in range(2)])
    herd_of([replace(story.seen("agent.waiting", sandbox="sbx-2"), data=AgentWaiting())], herd)
    state, other = herd.live["p1", "sbx-1"], herd.live["p1", "sbx-2"]
    assert herd.failures == [(("p1", "sbx-1"), "bad_fold")]
    assert state.disabled["bad_fold"].startswith("fold: ZeroDivisionError (test_monitor_rule_failures.py:")
    assert "bad_fold" not in state.parts
    assert (other.disabled, other.parts["bad_fold"]) == ({}, Count(1))
    assert state.parts["flooding"].messages == 2
    herd_of([replace(story.seen("agent.waiting"), data=AgentWaiting()), *story.loop(4)], herd)
    assert len(herd.failures) == 1
    assert steer(herd.live["p1", "sbx-1"], after(1), WITH_BAD, IDS) is not None


def test_rule_that_raises_in_judge_is_disabled_and_no_other(story: Story, after: After) -> None:
    """The rules after it find what they would have found."""
    herd = herd_of([story.seen("agent.started"), story.seen("agent.started", sandbox="sbx-2")])
    key, long_ago = ("p1", "sbx-1"), after(0) - timedelta(days=9)
    with pytest.raises(RuleFailedError) as failed:
        find(herd.live[key], after(90), WITH_BAD, long_ago)
    assert "sbx-1" not in failed.value.reason  # its text may have what the sandbox has published
    herd.disable(key, failed.value)
    assert herd.failures == [(key, "bad_judge")]
    for state in herd.live.values():
        finding = find(state, after(90), WITH_BAD, long_ago)
        assert finding is not None
        assert finding.rule == "dead"


METHODS = ("fold", "evaluate", "pattern", "step", "steering_text", "is_repeated", "ignored_after")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("highest", ["observe", "pause"])
def test_no_method_of_a_rule_affects_more_than_that_rule(story: Story, method: str, highest: Any) -> None:
    """Whichever raises, in the watch and in a replay: nothing escapes, and the next rule finds what it finds alone.

    The agent repeats two calls, so that both `loop` and `cycle` find something.
    """

    def fail(*_: Any) -> None:
        raise ZeroDivisionError(method)

    broken = type("Broken", (type(ALL.by_name["loop"]),), {method: fail})()
    rules = RuleSet([rule if rule.name != "loop" else broken for rule in ALL.rules], max_step=highest)
    herd, simulation, acted = Herd(rules=rules), Simulation(rules), set[str]()
    calls = [story.call(f"c{number}", number * 5, given=f"ls {number % 2}") for number in range(20)]
    for event in [one for call in calls for one in call]:
        herd.fold(event)
        simulation.feed(event)
        state = herd.live[event.project, event.entity]
        for decide in (lambda at: is_urgent(None, at, event, rules), lambda at: steer(at, event.at, rules, IDS)):  # noqa: B023  # called at once
            try:
                decision = decide(herd.live[state.key])
            except RuleFailedError as failure:
                herd.disable(state.key, failure)
            else:
                acted |= {decision.pattern.rule} if isinstance(decision, GuardianDecision) else set()
    found = {one.rule for one in simulation.findings}
    assert "cycle" in found
    if method in {"fold", "evaluate", "step"}:
        assert "loop" not in found & acted
        assert "cycle" in acted
    assert [rule for _, rule in herd.failures] in (["loop"], [])
    assert {rule.partition(":")[0] for reasons in simulation.failed.values() for rule in reasons} <= {"loop"}


def test_disabled_rule_stays_disabled_after_a_restart(story: Story) -> None:
    """The snapshot has the disabled rule, which is not reported again."""
    waits = [replace(story.seen("agent.waiting"), data=AgentWaiting()) for _ in range(3)]
    herd = herd_of(waits[:2])
    restored = herd_of(waits[2:], unpack(*pack(herd, "a"), WITH_BAD))
    assert restored.live["p1", "sbx-1"].disabled.keys() == {"bad_fold"}
    assert restored.failures == []


def test_nudge_of_a_rule_that_is_not_evaluated_any_more_ends_with_its_delivery(
    story: Story, rules: RuleSet, after: After
) -> None:
    """If the rule is disabled, off or removed, the outcome is `finished`. Else no other rule could send a message."""
    looped = reduce(fold, story.loop(4), None)
    assert looped is not None
    nudge = steer(looped, after(0), rules, IDS)
    assert nudge is not None
    sent = nudge.steering
    assert sent is not None
    decided = {"message_id": sent.message, "correlation_id": sent.correlation, "message": sent.text}
    event = story.seen("monitor.intervention_decided", rule="loop", step="nudge", **decided)
    received = story.seen("message.acknowledged", 1, message_id=sent.message, message_type="guardian_nudge")
    without = RuleSet([rule for rule in ALL.rules if rule.name != "loop"])

    def after_both(begin: SandboxActivity, folding: RuleSet) -> list[str | None]:
        unread = fold(begin, event, folding)
        read = fold(unread, received, folding)
        assert unread is not None
        assert read is not None
        return [outcome(unread, folding), outcome(read, folding)]

    failed = without_rule(looped, RuleFailedError("loop", "decision", _raised()))
    assert after_both(looped, rules) == [None, None]
    assert after_both(failed, rules) == after_both(looped, without) == [None, "finished"]


def _raised() -> Exception:
    try:
        int("x")
    except ValueError as error:
        return error
    raise AssertionError


def test_prompt_rule_is_judged_when_its_part_changes(story: Story, rules: RuleSet) -> None:
    """An event of the agent that changes no part is not urgent; a resume is."""
    states: list[SandboxActivity | None] = [None]
    urgent = []
    last = [story.seen("agent.heartbeat", 1), story.seen("sandbox.paused", 1), story.seen("sandbox.resumed", 2)]
    for event in [*story.loop(4), *last]:
        states.append(fold(states[-1], event, rules))
        state = states[-1]
        assert state is not None
        urgent.append(is_urgent(states[-2], state, event, rules))
    assert urgent[-5:] == [False, True, False, True, True]
