"""Which days of the history are dropped, by rules without a database."""

from datetime import UTC, date, datetime, timedelta

import pytest

from event_ingest.history_policy import (
    ExaminedDay,
    PartitionContents,
    RetentionPolicy,
    contents_due_at,
    days_ahead,
    expired_projects,
    expired_types,
    may_be_due,
    may_be_reduced,
    next_drop,
    next_reduction,
    partition_due_at,
    stored_before,
)

DAY = date(2026, 8, 1)
END = datetime(2026, 8, 2, tzinfo=UTC)
"""The end of that day: until then, its last event may occur."""
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
MOMENT = timedelta(microseconds=1)
POLICY = RetentionPolicy(90)
MIXED = RetentionPolicy(90, {"short": 10, "long": 400, "forever": 0})


def is_due(day: date, projects: set[str], policy: RetentionPolicy, not_before: datetime, now: datetime) -> bool:
    return ExaminedDay(day, partition_due_at(day, projects, policy, not_before), held=False).may_be_dropped(now)


def test_held_day_is_not_dropped() -> None:
    """A held day is not dropped, however long it has been due; nor is a day that is never due."""
    held, never = ExaminedDay(DAY, LONG_AGO, held=True), ExaminedDay(DAY, None, held=False)
    assert held.is_due(END)
    assert not held.may_be_dropped(END)
    assert not never.may_be_dropped(END)


def test_day_is_due_when_its_last_event_is_old_enough() -> None:
    """A day is due 90 days after its end, and not earlier."""
    due = END + timedelta(days=90)
    assert is_due(DAY, {"web"}, POLICY, LONG_AGO, due)
    assert not is_due(DAY, {"web"}, POLICY, LONG_AGO, due - MOMENT)


@pytest.mark.parametrize(
    ("projects", "days"),
    [
        (("web",), 90),
        (("web", "short"), 90),
        (("short",), 10),
        (("short", "long", "web"), 400),
        (("web", "forever"), None),
        ((), 90),
    ],
)
def test_project_that_needs_a_day_longest_decides(projects: tuple[str, ...], days: int | None) -> None:
    """The longest retention decides, because all projects share a partition, which is dropped as a whole."""
    due = None if days is None else END + timedelta(days=days)
    assert partition_due_at(DAY, projects, MIXED, LONG_AGO) == due


def test_zero_days_are_forever() -> None:
    """0 days mean that nothing is dropped, unless only projects with their own retention have events in a day."""
    never, now = RetentionPolicy(0, {"short": 10}), END + timedelta(days=36_000)
    assert not is_due(DAY, {"web", "short"}, never, LONG_AGO, now)
    assert not is_due(DAY, set(), never, LONG_AGO, now)
    assert is_due(DAY, {"short"}, never, LONG_AGO, now)
    assert not may_be_due(DAY, RetentionPolicy(0), LONG_AGO, now)
    assert stored_before(0, LONG_AGO, now) is None


def test_nothing_is_due_directly_after_an_upgrade() -> None:
    """Nothing is due for some days after an upgrade, so that operators can prevent the drop of a long history."""
    now = END + timedelta(days=500)
    assert not is_due(DAY, {"web"}, POLICY, now + MOMENT, now)
    assert not may_be_due(DAY, POLICY, now + MOMENT, now)
    assert stored_before(90, now + MOMENT, now) is None
    assert is_due(DAY, {"web"}, POLICY, now, now)
    assert partition_due_at(DAY, {"web"}, POLICY, now) == now


def test_contents_are_read_of_days_that_any_project_may_no_longer_need() -> None:
    """If a day is old enough for the shortest retention of any project, its contents are read to decide."""
    assert may_be_due(DAY, MIXED, LONG_AGO, END + timedelta(days=10))
    assert not may_be_due(DAY, MIXED, LONG_AGO, END + timedelta(days=10) - MOMENT)
    assert MIXED.varies
    assert not RetentionPolicy(90, {"web": 90}).varies


def test_event_of_no_day_is_due_by_the_time_at_which_it_was_stored() -> None:
    """The id of such an event is from a wrong clock and is not used."""
    now = END
    assert stored_before(90, LONG_AGO, now) == now - timedelta(days=90)


def test_days_ahead_end_at_the_first_day_without_a_partition() -> None:
    """Partitions behind a gap, and those of past days, are not counted."""
    days = {DAY + timedelta(days=offset) for offset in (-3, 0, 1, 2, 4)}
    assert days_ahead(days, DAY) == 2
    assert days_ahead(days, DAY + timedelta(days=2)) == 0
    assert days_ahead(set(), DAY) == 0


def test_next_drop_is_the_first_of_any_day_that_is_not_held() -> None:
    """Examined days are due by their contents, others by the general setting. If all stay, there is no drop."""
    days = {DAY, DAY + timedelta(days=1)}
    assert next_drop(days, [], MIXED, LONG_AGO) == END + timedelta(days=90)
    needed = ExaminedDay(DAY, END + timedelta(days=400), held=False)
    assert next_drop(days, [needed], MIXED, LONG_AGO) == END + timedelta(days=91)
    assert next_drop({DAY}, [needed], MIXED, LONG_AGO) == needed.due_at
    assert next_drop({DAY}, [ExaminedDay(DAY, LONG_AGO, held=True)], MIXED, LONG_AGO) is None
    assert next_drop(days, [], RetentionPolicy(0), LONG_AGO) is None
    assert next_drop(set(), [], POLICY, LONG_AGO) is None


def test_restored_day_stays_until_its_time() -> None:
    """A restored day that was due before is dropped after its restore. A day that is needed longer stays longer."""
    until = END + timedelta(days=200)
    restored = PartitionContents(frozenset({"web"}), restored_until=until)
    assert contents_due_at(DAY, restored, POLICY, LONG_AGO) == until
    assert contents_due_at(DAY, restored, RetentionPolicy(400), LONG_AGO) == END + timedelta(days=400)
    assert contents_due_at(DAY, restored, RetentionPolicy(0), LONG_AGO) is None


TYPED = RetentionPolicy(90, {"short": 10, "forever": 0}, {"agent.heartbeat": 1, "agent.thinking": 14, "agent.usage": 0})


@pytest.mark.parametrize(
    ("age", "types"),
    [(0, set()), (1, {"agent.heartbeat"}), (13, {"agent.heartbeat"}), (14, {"agent.heartbeat", "agent.thinking"})],
)
def test_types_expire_some_days_after_the_end_of_a_day(age: int, types: set[str]) -> None:
    """A type expires no earlier, and not before the end of the notice after an upgrade; 0 means no limit."""
    now = END + timedelta(days=age)
    assert expired_types(DAY, TYPED, LONG_AGO, now) == types
    assert expired_types(DAY, TYPED, LONG_AGO, now - MOMENT) <= types
    assert expired_types(DAY, TYPED, now + MOMENT, now) == set()


@pytest.mark.parametrize(
    ("projects", "age", "expired"),
    [
        ({"short", "other"}, 9, set()),
        ({"short", "other"}, 10, {"short"}),
        ({"short", "other"}, 90, set()),
        ({"short", "other", "forever"}, 90, {"short", "other"}),
        ({"short"}, 10, set()),
    ],
)
def test_projects_expire_before_others_of_their_day(projects: set[str], age: int, expired: set[str]) -> None:
    """If the events of all projects have expired, no project is returned: the day is dropped instead."""
    contents = PartitionContents(frozenset(projects))
    assert expired_projects(DAY, contents, TYPED, LONG_AGO, END + timedelta(days=age)) == expired


def test_held_or_restored_day_is_not_reduced() -> None:
    """A held day is not reduced, and a restored day not before the end of its restore."""
    assert may_be_reduced(PartitionContents(), END)
    assert not may_be_reduced(PartitionContents(held=True), END)
    assert not may_be_reduced(PartitionContents(restored_until=END + MOMENT), END)
    assert may_be_reduced(PartitionContents(restored_until=END), END)


def test_next_reduction_is_of_the_first_type_that_a_day_still_has() -> None:
    """A day without heartbeats is reduced again when the next type expires. Without types there is no reduction."""
    second = DAY + timedelta(days=1)
    assert next_reduction([DAY, second], {}, TYPED, LONG_AGO) == END + timedelta(days=1)
    assert next_reduction([DAY, second], {DAY: ["agent.heartbeat"]}, TYPED, LONG_AGO) == END + timedelta(days=2)
    assert next_reduction([DAY], {DAY: ["agent.heartbeat"]}, TYPED, LONG_AGO) == END + timedelta(days=14)
    assert next_reduction([DAY], {}, POLICY, LONG_AGO) is None
