"""The fold under any interleaving, any restart and any repetition."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.dataclass_copies import changer
from monitor.facts import MAX_CALLS, MAX_CLOSED, ObservedEvent
from monitor.guardian import outcome, steer
from monitor.herd import MAX_TOMBSTONES, Herd
from monitor.housekeeping_findings import find
from monitor.rule_set import RuleSet
from monitor.rules.rule import MAX_EVIDENCE
from monitor.sandbox_usage import AgentTotals
from monitor.snapshot import Manifest, SnapshotError, pack, unpack
from monitor.state_fold import fold
from sandherd.contracts.names import DerivedIds

Story = Any
IDS = DerivedIds(b"of the monitors")
T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)
SANDBOXES = ("sbx-1", "sbx-2", "sbx-3")

ids = st.sampled_from(["1", "2", "3"])
kinds: st.SearchStrategy[tuple[str, dict[str, Any]]] = st.one_of(
    st.tuples(
        st.sampled_from(
            [
                "agent.started",
                "agent.heartbeat",
                "agent.message",
                "agent.waiting",
                "agent.completed",
                "sandbox.requested",
                "sandbox.spawned",
                "sandbox.paused",
                "sandbox.resumed",
                "sandbox.stopping",
                "sandbox.terminated",
                "agent.of_another_version",
            ]
        ),
        st.just({}),
    ),
    st.tuples(st.sampled_from(["agent.exec_started", "task.retry_scheduled", "task.cancelled"]), st.just({})),
    st.tuples(
        st.just("agent.exec_completed"), st.fixed_dictionaries({"exec_id": ids, "state": st.sampled_from(["killed"])})
    ),
    st.tuples(
        st.just("sandbox.extended"),
        st.fixed_dictionaries(
            {"runtime": st.just("process"), "expires_at": st.integers(0, 400).map(lambda s: T0 + timedelta(seconds=s))}
        ),
    ),
    st.tuples(st.just("agent.tool_use"), st.fixed_dictionaries({"tool_use_id": ids, "tool": st.just("Bash")})),
    st.tuples(
        st.sampled_from(["agent.tool_result", "agent.user_tool_result"]),
        st.fixed_dictionaries({"tool_use_id": ids, "result": st.sampled_from(["a", "b"])}),
    ),
    st.tuples(
        st.just("agent.tool_completed"),
        st.fixed_dictionaries({"tool_use_id": st.none() | ids, "tool": st.just("Bash"), "tool_response": st.just("a")}),
    ),
    st.tuples(
        st.sampled_from(["message.acknowledged"]), st.fixed_dictionaries({"message_id": st.sampled_from(["m1", "m2"])})
    ),
    st.tuples(
        st.just("message.rejected"),
        st.fixed_dictionaries({"message_id": st.sampled_from(["m1", "m2"]), "reason": st.just("x")}),
    ),
    st.tuples(
        st.just("monitor.intervention_decided"),
        st.fixed_dictionaries(
            {
                "message_id": st.sampled_from(["m1", "m2"]),
                "intervention_number": st.integers(1, 3),
                "rule": st.just("loop"),
                "step": st.just("nudge"),
                "correlation_id": st.sampled_from(["k1", "k2"]),
                "message": st.just("stop"),
            }
        ),
    ),
    st.tuples(
        st.just("monitor.intervention_outcome"),
        st.fixed_dictionaries({"correlation_id": st.sampled_from(["k1", "k2"]), "outcome": st.just("obeyed")}),
    ),
    st.tuples(
        st.just("monitor.dead_found"),
        st.just({"rule": "dead", "age_seconds": 1.0, "limit_seconds": 1.0}),
    ),
)
stories = st.lists(st.tuples(st.sampled_from(SANDBOXES), st.integers(0, 400), kinds), max_size=60)


def events_of(steps: list[tuple[str, int, tuple[str, dict[str, Any]]]], make: Story) -> list[ObservedEvent]:
    """The story as the stream has it: numbered, and with the broker's times, which never go back."""
    at, events = 0, []
    for sandbox, passed, (kind, fields) in steps:
        at += passed
        events.append(make.seen(kind, at, sandbox, **fields))
    return events


def herd_of(events: list[ObservedEvent], herd: Herd | None = None) -> Herd:
    herd = herd or Herd()
    for event in events:
        herd.fold(event)
        herd.position = max(herd.position, event.number)
    return herd


@given(steps=stories)
def test_state_of_a_sandbox_is_independent_of_others(new_story: Callable[[], Story], steps: Any) -> None:
    """Folded among all, a sandbox's state is that of its own events alone, however they are interleaved."""
    events = events_of(steps, new_story())
    herd = herd_of(events)
    for sandbox in SANDBOXES:
        alone = herd_of([event for event in events if event.entity == sandbox])
        assert herd.live.get(("p1", sandbox)) == alone.live.get(("p1", sandbox))


@given(steps=stories, cut=st.floats(0, 1), back=st.floats(0, 1), wait=st.integers(0, 50_000))
def test_monitor_restarted_anywhere_finds_the_same(
    new_story: Callable[[], Story], rules: RuleSet, steps: Any, cut: float, back: float, wait: int
) -> None:
    """Restored from a snapshot and given the rest, and some events again: the same states and findings."""
    events = events_of(steps, new_story())
    at = int(cut * len(events))
    manifest, pieces = pack(herd_of(events[:at]), "1-a")
    restored = herd_of(
        events[int(back * at) :], unpack(Manifest.model_validate_json(manifest.model_dump_json()), pieces)
    )
    whole = herd_of(events)
    assert restored.live == whole.live
    assert set(restored.ended) == set(whole.ended)
    now = (events[-1].at if events else datetime.fromisoformat("2026-11-20T12:00:00+00:00")) + timedelta(seconds=wait)
    assert decisions(restored, now, rules) == decisions(whole, now, rules)


def decisions(herd: Herd, now: datetime, rules: RuleSet) -> dict[Any, Any]:
    long_ago = now - timedelta(days=9)
    return {
        key: (find(state, now, rules, long_ago), steer(state, now, rules, IDS), outcome(state, rules))
        for key, state in herd.live.items()
    }


@given(steps=stories)
def test_repeated_event_changes_nothing(new_story: Callable[[], Story], steps: Any) -> None:
    """Each event twice is each event once."""
    events = events_of(steps, new_story())
    twice = [event for event in events for _ in range(2)]
    assert herd_of(twice).live == herd_of(events).live


def test_state_of_a_sandbox_is_bounded(story: Story) -> None:
    """A thousand calls that never end, and a thousand equal ones, are remembered in part."""
    begin = story.seen("agent.started")
    opened = [story.seen("agent.tool_use", tool_use_id=f"open{number}", tool="x" * 9999) for number in range(1000)]
    repeated = story.loop(1000)
    state = reduce(fold, [begin, *opened, *repeated], None)
    assert state is not None
    assert len(state.in_flight) <= MAX_CALLS
    assert len(state.closed) <= MAX_CLOSED
    looped = reduce(fold, [begin, *repeated], None)
    assert looped is not None
    assert [len(row.evidence) <= MAX_EVIDENCE for row in looped.parts["loop"].rows] == [True]
    manifest, pieces = pack(Herd(1, [state]), "1-a")
    assert sum(map(len, pieces)) < 20_000
    assert manifest.sandboxes == 1


@pytest.mark.parametrize(
    ("begin", "end", "field"),
    [("agent.tool_use", "agent.tool_result", "tool_use_id"), ("agent.exec_started", "agent.exec_completed", "exec_id")],
)
def test_call_ids_of_any_length_use_little_memory(story: Story, begin: str, end: str, field: str) -> None:
    """A sandbox chooses them: of calls in flight and of ended ones, little is remembered; each ends its own call."""
    long = [f"{number}-{'x' * 20_000}" for number in range(MAX_CALLS)]
    begun = reduce(fold, [story.seen("agent.started"), *(story.seen(begin, **{field: one}) for one in long)], None)
    ended = reduce(fold, [story.seen(end, **{field: one}) for one in long], begun)
    assert begun is not None
    assert ended is not None
    assert (len(begun.in_flight), len(ended.in_flight)) == (MAX_CALLS, 0)
    assert max(map(len, (repr(begun), repr(ended)))) < 100_000


def test_late_event_does_not_restore_an_ended_sandbox(story: Story) -> None:
    """A sandbox's state is dropped at its end; a tombstone keeps late events out; tombstones are bounded."""
    herd = herd_of([story.seen("agent.started"), story.seen("sandbox.terminated"), story.seen("agent.heartbeat")])
    assert herd.live == {}
    for number in range(MAX_TOMBSTONES + 10):
        herd.remove(("p1", f"sbx-{number}"))
    assert len(herd.ended) == MAX_TOMBSTONES


@pytest.mark.parametrize("kind", ["message.rejected", "monitor.dead_found", "sandbox.orphan_found", "task.running"])
def test_event_about_an_unknown_sandbox_does_not_create_it(story: Story, kind: str) -> None:
    """A message to a sandbox that never existed must not be watched, found dead, and ended."""
    seen = replace(story.seen("agent.waiting"), type=kind, data=None)
    assert fold(None, seen) is None


def test_incomplete_snapshot_is_not_used(story: Story) -> None:
    """A piece may be missing, changed, or of another version."""
    manifest, pieces = pack(herd_of([story.seen("agent.started")]), "1-a")
    for broken in ([], [pieces[0][:-1]], [pieces[0] + b"x"]):
        with pytest.raises(SnapshotError):
            unpack(manifest, broken)
    with pytest.raises(SnapshotError, match="version 9"):
        unpack(manifest.model_copy(update={"version": 9}), pieces)


def test_herd_of_thousands_is_packed_and_restored(story: Story) -> None:
    """Each piece is under the broker's limit for a message."""
    steps = [event for number in range(3000) for event in story.call("1", sandbox=f"sbx-{number}", result=str(number))]
    herd = herd_of(steps)
    manifest, pieces = pack(herd, "1-b")
    assert all(len(piece) <= 512 * 1024 for piece in pieces)
    assert unpack(manifest, pieces).live == herd.live


def test_copy_with_other_values_changes_no_original() -> None:
    """It is what `dataclasses.replace` makes, can't be changed itself, and is of the same class."""
    changed, before = changer(AgentTotals), AgentTotals(turns=2, cost_micro_usd=7)
    copy = changed(before, turns=3, priced=True)
    assert (type(copy), copy) == (AgentTotals, replace(before, turns=3, priced=True))
    assert before == AgentTotals(turns=2, cost_micro_usd=7)
    with pytest.raises(FrozenInstanceError):
        copy.turns = 4  # type: ignore[misc]  # that is the claim
