"""A sandbox that says too much: the rule at its limit, with the time passed in."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.fold import fold
from monitor.reading import read
from monitor.recorded import Recorded
from monitor.rules import Finding, Limits, Rule, judge, stands
from monitor.state import SPELL, Seen, Watched
from sandherd.contracts.states import SandboxState

Story = Any
After = Callable[[float], datetime]


def says(story: Story, sizes: dict[float, int]) -> Watched:
    """A sandbox whose worker says so many bytes at these seconds."""
    events: list[Seen] = [story.seen("sandbox.requested")]
    events += [replace(story.seen("agent.message", at), size=size) for at, size in sizes.items()]
    state = reduce(fold, events, None)
    assert state is not None
    return state


def found(state: Watched, now: datetime, limits: Limits) -> str | None:
    finding = judge(state, now, limits, now - timedelta(days=1))
    return None if finding is None else finding.rule.value


@pytest.mark.parametrize(("sizes", "rule"), [((500, 500), None), ((500, 501), "flooding"), ((1001,), "flooding")])
def test_more_than_the_limit_within_a_minute_is_a_flood(
    story: Story, limits: Limits, after: After, sizes: tuple[int, ...], rule: str | None
) -> None:
    """Exactly the limit is not; one byte more is, in one event or in many."""
    assert found(says(story, {float(at): size for at, size in enumerate(sizes)}), after(2), limits) == rule


def test_the_same_over_a_longer_time_is_none(story: Story, limits: Limits, after: After) -> None:
    """A sandbox that says much for hours, but never too much in a minute, is let be."""
    state = says(story, {SPELL * number: 900 for number in range(50)})
    assert found(state, after(SPELL * 49 + 1), limits) is None


def test_a_flood_that_is_over_is_let_be(story: Story, limits: Limits, after: After) -> None:
    """After the monitor was away, one that flooded then and is quiet since is not ended for it."""
    state = says(story, {0: 5000})
    assert found(state, after(2 * SPELL), limits) == "flooding"
    later = fold(state, story.seen("agent.heartbeat", SPELL - 1))
    assert later is not None
    assert found(later, after(2 * SPELL + 1), limits) is None


def test_it_is_found_right_after_a_start(story: Story, limits: Limits, after: After) -> None:
    """What was said is proof enough, while silence proves nothing yet."""
    finding = judge(says(story, {0: 5000}), after(1), limits, after(1))
    assert finding is not None
    assert finding.rule is Rule.FLOODING


def test_one_without_a_task_may_not_flood_either(after: After) -> None:
    """The other rules leave a sandbox alone that is there for whoever asked for it; this one does not."""
    finding = Finding(Rule.FLOODING, after(0), SPELL)
    assert stands(finding, Recorded(state=SandboxState.RUNNING, alone=True), after(1))
    assert not stands(finding, Recorded(state=SandboxState.STOPPING), after(1))


@given(st.binary(max_size=400))
def test_what_breaks_the_contract_counts_too(document: bytes) -> None:
    """A flood of rubbish is a flood: every event's size is that of its bytes."""
    seen = read("sandherd.v1.event.p1.sbx-1.agent.started", document, 1, datetime.fromisoformat("2026-11-20T12:00Z"))
    assert seen is not None
    assert seen.size == len(document)


def published(story: Story, count: int, *, junk: bool) -> Watched:
    """A sandbox that publishes this many messages of a byte within a few seconds."""
    events: list[Seen] = [story.seen("sandbox.requested")]
    events += [replace(story.seen("agent.message", at / 1000), size=1, junk=junk) for at in range(count)]
    state = reduce(fold, events, None)
    assert state is not None
    return state


@pytest.mark.parametrize(("count", "junk", "rule"), [(20, False, None), (21, False, "flooding"), (6, True, "flooding")])
def test_messages_count_however_small_and_junk_counts_more(
    story: Story, limits: Limits, after: After, count: int, junk: bool, rule: str | None
) -> None:
    """Thousands of messages of one byte are a flood; of such that are no events, a few are enough."""
    few = replace(limits, flood_messages=20, flood_junk=5)
    assert found(published(story, count, junk=junk), after(1), few) == rule


@pytest.mark.parametrize("body", [b"1", b"", b"{}", b"x" * 5000, b"[" + b"1," * 90 + b"1]"])
@pytest.mark.parametrize("event_type", ["agent.completed", "agent.file_edited", "agent.heartbeat"])
def test_junk_is_seen_on_every_subject(body: bytes, event_type: str) -> None:
    """Also where the monitor does not read what an event says."""
    domain, _, action = event_type.partition(".")
    seen = read(f"sandherd.v1.event.p1.sbx-a.{domain}.{action}", body, 1, datetime.now(UTC))
    assert seen is not None
    assert seen.junk
