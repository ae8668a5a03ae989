"""Decisions of schedules: each due time has one outcome, by policy and catch-up window, also where clocks change."""

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any, get_args
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandherd.contracts.harnesses import CommandHarness
from sandherd.contracts.names import safe_name
from sandherd.contracts.schedules import Overlap, ScheduleSpec
from sandherd.contracts.specs import TaskSpec
from spawner.schedules import due_decisions
from spawner.schedules.due_times import cron_refusal, due_times
from spawner.schedules.refusals import schedule_refusal
from spawner.schedules.schedule_record import ScheduleRecord

BEGIN = datetime(2026, 10, 24, 12, tzinfo=UTC)
BERLIN = "Europe/Berlin"
CRONS = ["0 3 * * *", "30 2 * * *", "*/5 * * * *", "0 * * * *", "15,45 1-3 * * *", "0 9 * * MON-FRI"]
ZONES = ["UTC", BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]


def task(**more: Any) -> TaskSpec:
    return TaskSpec(text="x", harness=CommandHarness(argv=["true"]), **more)


def record(cron: str = "0 3 * * *", zone: str = "UTC", **more: Any) -> ScheduleRecord:
    policy = {name: more.pop(name) for name in ("overlap", "catch_up_seconds", "task") if name in more}
    spec = ScheduleSpec(cron=cron, time_zone=zone, **{"task": task(), **policy})
    times = {"decided": BEGIN, "created_at": BEGIN, "updated_at": BEGIN, **more}
    return ScheduleRecord(project="p1", schedule="nightly", spec=spec, **times)


def times(cron: str, zone: str, after: datetime, count: int) -> list[str]:
    local = (due.astimezone(ZoneInfo(zone)) for due in due_times(cron, zone, after))
    return [f"{due:%m-%d %H:%M%z}" for due in islice(local, count)]


def test_due_times_where_the_clock_changes() -> None:
    """A skipped local time is due after the change, one that occurs twice is due once. Hourly times stay hourly."""
    spring, autumn = datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 10, 24, 12, tzinfo=UTC)
    assert times("30 2 * * *", BERLIN, spring, 2) == ["03-29 03:00+0200", "03-30 02:30+0200"]
    assert times("30 2 * * *", BERLIN, autumn, 2) == ["10-25 02:30+0200", "10-26 02:30+0100"]
    before = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert times("0 * * * *", BERLIN, before, 2) == ["10-25 02:00+0100", "10-25 03:00+0100"]
    repeated = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)  # 02:10 for the second time
    assert times("30 2 * * *", BERLIN, repeated, 1) == ["10-26 02:30+0100"]
    assert times("0 * * * *", BERLIN, datetime(2026, 3, 29, tzinfo=UTC), 2) == ["03-29 03:00+0200", "03-29 04:00+0200"]


@settings(deadline=None)
@given(
    st.sampled_from(CRONS),
    st.sampled_from(ZONES),
    st.timedeltas(timedelta(0), timedelta(days=365)).map(BEGIN.__add__),
    st.timedeltas(timedelta(0), timedelta(hours=30)),
)
def test_due_times_do_not_depend_on_where_one_begins(cron: str, zone: str, after: datetime, later: timedelta) -> None:
    """Due times increase and are after the beginning. A later beginning gives the same due times from there on."""
    found = list(islice(due_times(cron, zone, after), 400))
    assert found[0] > after
    assert all(one < other for one, other in pairwise(found))
    left = [due for due in found if due > after + later][:5]
    assert list(islice(due_times(cron, zone, after + later), len(left))) == left


def carried_out(one: ScheduleRecord, now: datetime, *, running: bool) -> tuple[ScheduleRecord, list[Any], bool]:
    """Decide until nothing is due, as the runner does. Started tasks do not end meanwhile."""
    seen: list[Any] = []
    while (decision := due_decisions.next_decision(one, now, running=running)) is not None:
        assert not (decision.start and running and one.spec.overlap in {"skip", "buffer_one"})
        assert decision.cancel == bool(decision.start and running and one.spec.overlap == "cancel_other")
        one = due_decisions.decided(one, decision, now)
        seen += decision.not_started
        for start in one.starts:
            seen.append(due_decisions.run_of(start, "started", now))
            one = due_decisions.finished(one, start, seen[-1])
            running = True
        assert not one.starts
    return one, seen, running


@settings(deadline=None)
@given(
    st.sampled_from(CRONS),
    st.sampled_from(ZONES),
    st.sampled_from(get_args(Overlap)),
    st.integers(60, 86_400),
    st.lists(st.tuples(st.timedeltas(timedelta(0), timedelta(hours=20)), st.booleans()), min_size=1, max_size=12),
)
def test_each_due_time_has_at_most_one_outcome(
    cron: str, zone: str, overlap: Overlap, catch_up: int, passes: list[tuple[timedelta, bool]]
) -> None:
    """Whenever a spawner runs and a task ends, no due time starts two tasks, and none within the window is lost."""
    one, now, running = record(cron, zone, overlap=overlap, catch_up_seconds=catch_up), BEGIN, False
    started: list[datetime] = []
    decided = 0
    for gap, ended in passes:
        now += gap
        one, seen, running = carried_out(one, now, running=running and not ended)
        started += [run.due_at for run in seen if run.outcome == "started"]
        assert len({run.task for run in seen if run.task}) == sum(run.outcome == "started" for run in seen)
        window = [
            due for due in due_times_until(cron, zone, now - gap, now) if due >= now - timedelta(seconds=catch_up)
        ]
        counted = sum(run.due_times for run in seen if run.due_at in window)
        buffered = int(one.waiting in window) if one.waiting else 0
        if len(window) <= due_decisions.MAX_STARTS:
            assert counted + buffered == len(window)
        decided += counted
        assert due_decisions.next_decision(one, now, running=running) is None
        if overlap != "buffer_one":
            assert all(run.due_at >= now - timedelta(seconds=catch_up) for run in seen if run.outcome == "started")
    assert len(started) == len(set(started))
    assert set(started) <= set(due_times_until(cron, zone, BEGIN, now))


def due_times_until(cron: str, zone: str, after: datetime, until: datetime) -> list[datetime]:
    found = []
    for due in due_times(cron, zone, after):
        if due > until:
            break
        found.append(due)
    return found


@pytest.mark.parametrize(
    ("overlap", "running", "expected", "waiting"),
    [
        ("skip", False, [("started", 0, 1), ("skipped", 1, 2)], None),
        ("skip", True, [("skipped", 0, 3)], None),
        ("allow", True, [("started", 0, 1), ("started", 1, 1), ("started", 2, 1)], None),
        ("cancel_other", True, [("skipped", 0, 2), ("started", 2, 1)], None),
        ("buffer_one", True, [("skipped", 1, 2)], 0),
        ("buffer_one", False, [("started", 0, 1), ("skipped", 2, 1)], 1),
    ],
)
def test_overlap_policies_after_three_due_times(
    overlap: str, running: bool, expected: list[tuple[str, int, int]], waiting: int | None
) -> None:
    """Each policy starts, skips or delays the due times that have passed while no spawner ran."""
    due = [BEGIN + timedelta(hours=hours) for hours in (1, 2, 3)]
    one = record("0 * * * *", overlap=overlap, catch_up_seconds=86_400)
    one, seen, _ = carried_out(one, BEGIN + timedelta(hours=3, minutes=1), running=running)
    assert [(run.outcome, due.index(run.due_at), run.due_times) for run in seen] == expected
    assert one.waiting == (None if waiting is None else due[waiting])
    if waiting is not None:
        one, seen, _ = carried_out(one, BEGIN + timedelta(hours=3, minutes=2), running=False)
        assert [(run.outcome, run.due_at) for run in seen] == [("started", due[waiting])]


def test_missed_times_are_not_caught_up() -> None:
    """After a week, only a due time within the catch-up window starts a task. `allow` starts a limited number."""
    now = BEGIN + timedelta(days=7, hours=-9, minutes=30)
    one, seen, _ = carried_out(record("0 3 * * *", overlap="allow"), now, running=False)
    assert [(run.outcome, run.task) for run in seen] == [("missed", None), ("started", "nightly-20261031t0300z")]
    assert one.decided == seen[-1].due_at
    often = record("* * * * *", overlap="allow", catch_up_seconds=86_400)
    _, seen, _ = carried_out(often, BEGIN + timedelta(hours=12), running=False)
    assert [run.due_times for run in seen if run.outcome == "missed"] == [12 * 60 - due_decisions.MAX_STARTS]
    assert sum(run.outcome == "started" for run in seen) == due_decisions.MAX_STARTS


def test_paused_schedule_starts_nothing_also_later() -> None:
    """Due times while it was paused are not considered after it was resumed."""
    one = due_decisions.paused(record("0 * * * *", overlap="allow", catch_up_seconds=86_400), BEGIN, wanted=True)
    later = BEGIN + timedelta(hours=5, minutes=1)
    assert due_decisions.next_decision(one, later, running=False) is None
    one = due_decisions.paused(one, later, wanted=False)
    assert due_decisions.next_decision(one, later + timedelta(minutes=58), running=False) is None
    decision = due_decisions.next_decision(one, later + timedelta(minutes=59), running=False)
    assert decision is not None
    assert decision.start == BEGIN + timedelta(hours=6)


def test_names_of_tasks_are_safe_and_distinct() -> None:
    """The longest name of a schedule gives valid names. A triggered task never has the name of a due time's task."""
    one = record().model_copy(update={"schedule": "n" * 40})
    due = due_decisions.due_start(one, BEGIN, BEGIN, cancel=False)
    triggered = due_decisions.triggered_start(one, BEGIN)
    assert safe_name(due.task) == "n" * 40 + "-20261024t1200z"
    assert safe_name(triggered.task) == "n" * 40 + "-20261024t120000z"


@pytest.mark.parametrize(
    ("cron", "zone", "expected_text"),
    [
        ("61 * * * *", "UTC", "cron '61 * * * *' is invalid: '61' is not a valid minute (0 to 59)"),
        (
            "0 0 30 2 *",
            "UTC",
            "'30' is not a valid day of the month (1 to 31 or L, the last); it has to exist in a named month",
        ),
        ("x 0 * * *", "UTC", "'x' is not a valid minute"),
        ("0 24 * * *", "UTC", "'24' is not a valid hour"),
        ("0 0 1 13 *", "UTC", "'13' is not a valid month"),
        ("0 0 * * 8", "UTC", "'8' is not a valid day of the week (0 to 7 or SUN to SAT)"),
        ("@daily", "UTC", "it needs five fields, not 1: minute, hour, day of the month, month, day of the week"),
        ("* * * * * *", "UTC", "not 6"),
        ("0 3 * * *", "Europe/Nowhere", "there is no time zone Europe/Nowhere"),
        ("0 3 * * *", "/etc/passwd", "there is no time zone"),
        ("0 3 * * *", "Europe", "there is no time zone"),
    ],
)
def test_invalid_times_are_refused(cron: str, zone: str, expected_text: str) -> None:
    """The refusal has the field and the reason."""
    refused = cron_refusal(cron, zone, BEGIN)
    assert refused is not None
    assert expected_text in refused.reason
    assert refused.field in {"schedule.cron", "schedule.time_zone"}


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"env": {"TOKEN": "value"}, "secret_env": {"TOKEN"}}, "secret_env"),
        ({"depends_on": ("task-1",)}, "depends_on"),
        ({"deadline": BEGIN}, "deadline"),
        ({"labels": {"sandherd/batch": "batch-1"}}, "labels"),
        ({"labels": {f"key-{number}": "" for number in range(31)}}, "labels"),
    ],
)
def test_task_that_exists_only_once_is_refused(more: dict[str, Any], field: str) -> None:
    """A schedule's task has no secret values, and nothing that belongs to a single task."""
    refused = schedule_refusal(record(task=task(**more)), BEGIN)
    assert refused is not None
    assert refused.field == f"schedule.task.{field}"


def test_large_task_is_refused() -> None:
    """The size of a schedule's task is limited, because the bucket has to store the schedules of many projects."""
    values = {f"V{number}": "y" * 30_000 for number in range(9)}
    assert schedule_refusal(record(task=task(env={"V": "y" * 30_000}, files={"a": "x" * 120_000})), BEGIN) is None
    refused = schedule_refusal(record(task=task(env=values)), BEGIN)
    assert refused is not None
    assert refused.field == "schedule.task"
