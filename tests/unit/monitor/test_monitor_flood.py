"""The flood rule at its limit, with the time passed in."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.event_decoder import read
from monitor.facts import ObservedEvent
from monitor.housekeeping_findings import find, still_holds
from monitor.rule_set import ALL, RuleSet
from monitor.rules.flooding import WINDOW_SECONDS
from monitor.rules.rule import Finding
from monitor.sandbox_state import SandboxActivity
from monitor.state_fold import fold
from sandherd.contracts.records import SharedSandboxRecord
from sandherd.contracts.states import SandboxState
from tests.unit.monitor.rule_sets import with_thresholds

Story = Any
After = Callable[[float], datetime]


def expected_text(story: Story, sizes: dict[float, int]) -> SandboxActivity:
    """A sandbox whose worker publishes this number of bytes at these seconds."""
    events: list[ObservedEvent] = [story.seen("sandbox.requested")]
    events += [replace(story.seen("agent.message", at), size=size) for at, size in sizes.items()]
    state = reduce(fold, events, None)
    assert state is not None
    return state


def found(state: SandboxActivity, now: datetime, rules: RuleSet) -> str | None:
    finding = find(state, now, rules, now - timedelta(days=1))
    return None if finding is None else finding.rule


@pytest.mark.parametrize(("sizes", "rule"), [((500, 500), None), ((500, 501), "flooding"), ((1001,), "flooding")])
def test_more_than_the_limit_within_a_minute_is_a_flood(
    story: Story, rules: RuleSet, after: After, sizes: tuple[int, ...], rule: str | None
) -> None:
    """Exactly the limit is not a flood; one byte more is one, in one event or in many."""
    assert found(expected_text(story, {float(at): size for at, size in enumerate(sizes)}), after(2), rules) == rule


def test_steady_rate_is_no_flood(story: Story, rules: RuleSet, after: After) -> None:
    """A sandbox that publishes much for hours, but never too much in a minute, is left alone."""
    state = expected_text(story, {WINDOW_SECONDS * number: 900 for number in range(50)})
    assert found(state, after(WINDOW_SECONDS * 49 + 1), rules) is None


def test_past_flood_is_ignored(story: Story, rules: RuleSet, after: After) -> None:
    """After the monitor was down, a sandbox that flooded then and is quiet since is not ended for it."""
    state = expected_text(story, {0: 5000})
    assert found(state, after(2 * WINDOW_SECONDS), rules) == "flooding"
    later = fold(state, story.seen("agent.heartbeat", WINDOW_SECONDS - 1))
    assert later is not None
    assert found(later, after(2 * WINDOW_SECONDS + 1), rules) is None


def test_flood_is_found_right_after_a_start(story: Story, rules: RuleSet, after: After) -> None:
    """Published events are proof enough, while silence proves nothing yet."""
    finding = find(expected_text(story, {0: 5000}), after(1), rules, after(1))
    assert finding is not None
    assert finding.rule == "flooding"


def test_sandbox_without_a_task_may_not_flood_either(after: After) -> None:
    """This is the only rule that applies to a sandbox that a client uses."""
    finding = Finding("flooding", after(0), WINDOW_SECONDS)
    assert still_holds(finding, SharedSandboxRecord(state=SandboxState.RUNNING), after(1), ALL)
    assert not still_holds(finding, SharedSandboxRecord(state=SandboxState.STOPPING, task="task-1"), after(1), ALL)


@given(st.binary(max_size=400))
def test_invalid_event_counts_towards_a_flood(document: bytes) -> None:
    """The size of each event is the number of its bytes."""
    seen = read("sandherd.v1.event.p1.sbx-1.agent.started", document, 1, datetime.fromisoformat("2026-11-20T12:00Z"))
    assert seen is not None
    assert seen.size == len(document)


def published(story: Story, count: int, *, junk: bool) -> SandboxActivity:
    """A sandbox that publishes this many messages of a byte within a few seconds."""
    events: list[ObservedEvent] = [story.seen("sandbox.requested")]
    events += [replace(story.seen("agent.message", at / 1000), size=1, junk=junk) for at in range(count)]
    state = reduce(fold, events, None)
    assert state is not None
    return state


@pytest.mark.parametrize(("count", "junk", "rule"), [(20, False, None), (21, False, "flooding"), (6, True, "flooding")])
def test_small_and_invalid_messages_count(story: Story, after: After, count: int, junk: bool, rule: str | None) -> None:
    """Thousands of one-byte messages are a flood; a few invalid messages are enough."""
    few = with_thresholds("flooding", bytes=1000, messages=20, junk=5)
    assert found(published(story, count, junk=junk), after(1), few) == rule


@pytest.mark.parametrize("body", [b"1", b"", b"{}", b"x" * 5000, b"[" + b"1," * 90 + b"1]"])
@pytest.mark.parametrize("event_type", ["agent.completed", "agent.file_edited", "agent.heartbeat"])
def test_invalid_message_is_seen_on_every_subject(body: bytes, event_type: str) -> None:
    """This includes subjects whose events the monitor does not read."""
    domain, _, action = event_type.partition(".")
    seen = read(f"sandherd.v1.event.p1.sbx-a.{domain}.{action}", body, 1, datetime.now(UTC))
    assert seen is not None
    assert seen.junk
