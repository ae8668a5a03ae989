"""The registry of rules, their thresholds from the settings, and their parts in a snapshot."""

from dataclasses import dataclass, field
from functools import reduce
from typing import Annotated, Any

import pytest
from pydantic import Field

from monitor.facts import Facts, ObservedEvent
from monitor.herd import Herd
from monitor.repeated_calls import RepeatedCalls
from monitor.rule_set import ALL, RuleSet
from monitor.rule_settings import rule_set_of
from monitor.rules import registry
from monitor.rules.rule import Documentation, HousekeepingRule, SettingReference, Thresholds, Unit
from monitor.snapshot import pack, unpack
from monitor.state_fold import fold
from sandherd.contracts import monitor_rules
from sandherd.contracts.errors import ContractError
from sandherd.settings import Settings, environment_names, load
from tests.unit.monitor.rule_sets import GUARDIAN

Story = Any


def test_registry_finds_each_module_in_the_order_of_evaluation() -> None:
    """A flood is found before all, and guardian rules come last."""
    names = [rule.name for rule in registry.RULES]
    assert names[:6] == ["flooding", "dead", "too_old", "finished", "stuck", "idle"]
    assert names[6:] == GUARDIAN
    assert names[6:12] == ["steering_ignored", "constraint", "loop", "cycle", "fan_out", "error_streak"]
    assert [row.name for row in monitor_rules.RULES] == [rule.name for rule in registry.RULES]


class OddThresholds(Thresholds):
    """Without unit and default."""

    text: str
    number: Annotated[int, Field(ge=1)] = 1


@dataclass
class OpenPart:
    """A part that could be changed in place."""

    seen: list[str] = field(default_factory=list)
    last: str = ""


class Odd(HousekeepingRule[Any, OddThresholds]):
    """A rule that is invalid in all ways."""

    name = "Odd Rule"
    order = 20
    thresholds = OddThresholds
    part = OpenPart
    documentation = Documentation("", "", "")

    def evaluate(self, part: Any, facts: Facts, now: Any, thresholds: OddThresholds) -> None:
        return None


def test_invalid_rules_are_refused_with_all_reasons() -> None:
    """The rules have one name or order, mutable parts, and thresholds without a default or unit."""
    found = set(registry.problems([*registry.RULES, Odd(), ALL.by_name["loop"]]))
    assert found == {
        "two rules have the name loop",
        "two rules have the order 20",
        "two rules have the order 100",
        "Odd Rule: a name has small letters, digits and underscores",
        "Odd Rule: it is not a frozen dataclass",
        "Odd Rule: its part is not a frozen dataclass",
        "Odd Rule: a rule has a part if it folds something, and only then",
        "Odd Rule: the threshold text is not a number with a default",
        "Odd Rule: the threshold text has no unit",
        "Odd Rule: the threshold number has no unit",
    }


def test_default_of_a_threshold_is_that_of_its_setting() -> None:
    """The same number is in the code of the rule and in the settings; the setting exists."""
    settings, names = Settings(), environment_names()
    for rule in registry.RULES:
        for name, info in rule.thresholds.model_fields.items():
            for source in info.metadata:
                if isinstance(source, SettingReference):
                    assert source.name in names
                    assert info.default == getattr(settings, source.name) * source.factor, (rule.name, name)
            assert any(isinstance(one, Unit) for one in info.metadata)


def thresholds_of(environ: dict[str, str]) -> RuleSet:
    return rule_set_of(load(environ=environ).settings)


def test_thresholds_come_from_rules_else_from_their_own_setting() -> None:
    """`SANDHERD_RULES` takes precedence, whatever its form; a rule that is off is not evaluated."""
    old = {"SANDHERD_DEAD_AFTER": "30", "SANDHERD_LOOP_REPEATS": "6", "SANDHERD_FLOOD_MB": "2"}
    before = thresholds_of(old)
    assert before.thresholds["dead"].after == 30
    assert before.thresholds["loop"].repeats == 6
    assert before.thresholds["flooding"].bytes == 2 * 1024 * 1024
    for text in ("dead.after=7.5, loop.repeats=3", '{"dead": {"after": 7.5}, "loop": {"repeats": 3}}'):
        both = thresholds_of(old | {"SANDHERD_RULES": text})
        assert (both.thresholds["dead"].after, both.thresholds["loop"].repeats) == (7.5, 3)
        assert both.thresholds["flooding"].bytes == 2 * 1024 * 1024
    for text in ("loop=off", "{loop: off}", '{"loop": "off"}'):
        assert "loop" not in [rule.name for rule in thresholds_of({"SANDHERD_RULES": text}).guardian]


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        (
            "lop.repeats=3",
            "finished, stuck, idle, steering_ignored, constraint, loop, ",
        ),
        ("loop.times=3", "loop has no such threshold; it has: repeats"),
        ("loop.repeats=1", "loop.repeats has to be an integer at least 2"),
        ("loop.repeats=2.5", "loop.repeats has to be an integer"),
        ("loop.repeats=many", "loop.repeats has to be an integer"),
        ("dead.after=0", "dead.after has to be a number above 0"),
        ("dead.after=nan", "dead.after has to be a number above 0"),
        ("dead.after=inf", "dead.after has to be a number above 0"),
        ("dead=off", "dead can't be off; these can: steering_ignored, constraint, loop, "),
        ("loop", "rule.threshold=value"),
        ("loop=on", "rule.threshold=value"),
        ("loop=off,loop.repeats=3", "loop is off"),
        ("loop.repeats=3,loop=off", "loop is off"),
        ("{loop: 3}", "loop has to be thresholds, or off"),
        ("{loop: {repeats: true}}", "loop.repeats has to be an integer"),
    ],
)
def test_unknown_rules_and_thresholds_are_refused_with_the_valid_ones(text: str, expected_text: str) -> None:
    """Values outside the limits, and `off` for rules that can't be off, are refused, too."""
    with pytest.raises(ContractError) as refused:
        thresholds_of({"SANDHERD_RULES": text})
    assert expected_text in refused.value.problem.message


def looping(story: Story) -> Herd:
    herd = Herd()
    for seen in [*story.loop(3), *story.call("c", sandbox="sbx-2")]:
        herd.fold(seen)
    return herd


def test_parts_are_restored_by_the_types_of_their_rules(story: Story) -> None:
    """A restored part is equal to the stored one, and of the same class."""
    herd = looping(story)
    restored = unpack(*pack(herd, "a"))
    assert restored.live == herd.live
    assert isinstance(restored.live["p1", "sbx-1"].parts["loop"], RepeatedCalls)


@dataclass(frozen=True, slots=True)
class NewStreak:
    """A part of a later version, which needs what this one has not stored."""

    turns: int = 0
    rows: bool = False


def test_unreadable_part_is_dropped_alone(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part is of an unknown rule, or of another shape. That rule begins with a new part; all else is restored."""
    manifest, pieces = pack(looping(story), "a")
    dropped: list[tuple[str, int]] = []
    without = RuleSet([rule for rule in ALL.rules if rule.name != "loop"])
    herd = unpack(manifest, pieces, without, lambda rule, count: dropped.append((rule, count)))
    monkeypatch.setattr(type(ALL.by_name["loop"]), "part", NewStreak)
    changed = unpack(manifest, pieces, RuleSet(), lambda rule, count: dropped.append((rule, count)))
    assert dropped == [("loop", 2), ("loop", 2)]
    for restored in (herd, changed):
        assert all({"flooding", "cycle"} <= state.parts.keys() for state in restored.live.values())
        assert all("loop" not in state.parts for state in restored.live.values())
        assert restored.live["p1", "sbx-1"].parts["flooding"].messages == 6


def test_rule_that_is_off_folds_nothing(story: Story) -> None:
    """Its part is not computed; the parts of other rules are."""
    without = RuleSet([rule for rule in ALL.rules if rule.name != "loop"])
    events: list[ObservedEvent] = story.loop(4)
    state = reduce(lambda state, event: fold(state, event, without), events, None)
    assert state is not None
    assert {"flooding", "cycle"} <= state.parts.keys()
    assert "loop" not in state.parts
