"""Budgets: what projects are charged, what a task has used, and what follows when a limit is reached."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from monitor.budgets import budget_decisions, budget_ledger
from monitor.budgets.amounts import NOTHING, SandboxUse, UsedByKind
from monitor.budgets.budget_decisions import BudgetLimit
from monitor.budgets.budget_ledger import ProjectLedger, ReachedLimit, TaskLedger
from sandherd.contracts.budgets import BudgetLimits, HerdBudgets, WindowLimits
from sandherd.contracts.model import MAX_WHOLE
from sandherd.contracts.records import SandboxSummary, SandboxUsage

T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)


def use(used: UsedByKind = NOTHING, sandbox: str = "sbx-1", *, at: float = 0, **fields: Any) -> SandboxUse:
    known: dict[str, Any] = {"task": "task-1", "state": "finished", "started_at": T0, "sequence": 1} | fields
    return SandboxUse(project="p1", sandbox=sandbox, used=used, updated_at=T0 + timedelta(seconds=at), **known)


def after(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def day(found: ProjectLedger, now: datetime = T0) -> UsedByKind:
    return budget_ledger.used_since(found.hours, now, budget_ledger.DAY_HOURS)


# --- charges -----------------------------------------------------------------------------------------------------


def test_differences_are_charged_once() -> None:
    """A repeated summary, an older summary, and a ledger that is read again charge nothing."""
    first = budget_ledger.with_charges(ProjectLedger(project="p1"), [use(UsedByKind(100, 10, 1))], T0)
    second = budget_ledger.with_charges(first, [use(UsedByKind(150, 30, 2), sequence=2)], T0)
    assert day(second) == UsedByKind(150, 30, 2)
    read = ProjectLedger.model_validate_json(second.model_dump_json(exclude_defaults=True))
    assert read == second
    for again in (use(UsedByKind(150, 30, 2), sequence=2), use(UsedByKind(100, 10, 1)), use(NOTHING, sequence=3)):
        assert budget_ledger.with_charges(read, [again], T0) is read
    decreased = budget_ledger.with_charges(read, [use(UsedByKind(149, 31, 0), sequence=4)], T0)
    assert day(decreased) == UsedByKind(150, 31, 2)


def test_amounts_beyond_the_maximum_of_a_contract_can_be_stated() -> None:
    """Reports of hostile sandboxes, and grants of a client, add up to at most what a reply and an event can have."""
    most = UsedByKind(*[MAX_WHOLE] * 4)
    usage = SandboxUsage(input_tokens=MAX_WHOLE, output_tokens=MAX_WHOLE, cost_micro_usd=MAX_WHOLE)
    times: dict[str, Any] = {"started_at": T0, "updated_at": T0}
    summary = SandboxSummary(project="p1", sandbox="sbx-1", state="finished", sequence=1, spending=usage, **times)
    assert SandboxUse.of(summary).used.tokens == MAX_WHOLE
    book = budget_ledger.with_charges(ProjectLedger(project="p1"), [use(most), use(most, "sbx-2")], T0)
    limited = WindowLimits(day=BudgetLimits(tokens=1), month=BudgetLimits(cost_micro_usd=1))
    for limit in budget_decisions.limits_of_windows("p1", book.hours, [limited], T0):
        assert budget_decisions.line_of(limit, {}).used == MAX_WHOLE
    task = TaskLedger(project="p1", task="task-1", budget=BudgetLimits(tokens=1))
    for name in ("one", "two"):
        task = budget_ledger.with_grant(task, name, BudgetLimits(tokens=MAX_WHOLE))
    assert [
        budget_decisions.line_of(limit, {}).limit for limit in budget_decisions.limits_of_task(task, (), BudgetLimits())
    ][1] == (MAX_WHOLE)


def test_largest_ledger_of_a_project_fits_in_a_message() -> None:
    """The ledger has the maximum number of ended sandboxes, with the longest names and the largest amounts."""
    most = UsedByKind(*[MAX_WHOLE] * 4)
    names = [f"sbx-{number:059d}" for number in range(budget_ledger.MAX_CHARGED + 100)]
    uses = [use(most, name, state="ended", sequence=MAX_WHOLE) for name in names]
    book = budget_ledger.with_charges(ProjectLedger(project="p" * 63), uses, T0)
    hours = dict.fromkeys(range(500_000, 500_000 + budget_ledger.STORED_HOURS), most)
    full = book.model_copy(update={"hours": hours})
    assert len(full.charged) == budget_ledger.MAX_CHARGED
    assert len(full.model_dump_json(exclude_defaults=True)) < 900 * 1024


totals = st.builds(UsedByKind, *(st.integers(0, 1000) for _ in range(4)))


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), totals), max_size=40))
def test_charges_are_the_greatest_totals_in_any_order(found: list[tuple[str, UsedByKind]]) -> None:
    """The charged usage never decreases, and is the sum of the greatest total of each sandbox."""
    book, before = ProjectLedger(project="p1"), NOTHING
    for sandbox, used in found:
        book = budget_ledger.with_charges(book, [use(used, sandbox)], T0)
        assert day(book) == day(book).greatest(before)
        before = day(book)
    expected = NOTHING
    for sandbox in {name for name, _ in found}:
        most = NOTHING
        for name, used in found:
            most = most.greatest(used) if name == sandbox else most
        expected = expected.plus(most)
    assert day(book) == expected


def test_windows_roll() -> None:
    """Usage of a day ago counts in the month, and usage of 31 days ago in no window."""
    book = budget_ledger.with_charges(ProjectLedger(project="p1"), [use(UsedByKind(5))], T0)
    later = T0 + timedelta(hours=24)
    assert day(book, later - timedelta(hours=1)).cost == 5
    assert day(book, later).cost == 0
    assert budget_ledger.used_since(book.hours, later, budget_ledger.MONTH_HOURS).cost == 5
    last_use = use(UsedByKind(6), sequence=2, at=32 * 86_400)
    after_month = budget_ledger.with_charges(book, [last_use], T0 + timedelta(days=32))
    assert list(after_month.hours.values()) == [UsedByKind(1)]


def test_ended_sandboxes_are_dropped_and_not_charged_again() -> None:
    """A day after its end the ledger no longer lists a sandbox; its summary, which is still there, charges nothing."""
    ended = use(UsedByKind(7), state="ended", sequence=40)
    book = budget_ledger.with_charges(ProjectLedger(project="p1"), [ended], T0)
    later = T0 + timedelta(days=2)
    dropped = budget_ledger.with_charges(book, [ended], later)
    assert (dropped.charged, dropped.closed_through) == ({}, 40)
    assert budget_ledger.with_charges(dropped, [ended], later) is dropped
    other = budget_ledger.with_charges(dropped, [use(UsedByKind(1), "sbx-2", sequence=41)], later)
    assert other.charged.keys() == {"sbx-2"}


def test_sandbox_that_ends_beside_one_that_lingered_is_charged() -> None:
    """One sandbox ended a day after its agent.

    The summary of another one, of an earlier event, is written after that.
    """
    lingered = use(UsedByKind(7), state="ended", sequence=100)
    now = T0 + timedelta(days=2)
    first = budget_ledger.with_charges(ProjectLedger(project="p1"), [lingered], now)
    other = use(UsedByKind(5), "sbx-2", state="ended", sequence=99, at=172_700)
    second = budget_ledger.with_charges(first, [lingered, other], now + timedelta(seconds=5))
    assert day(second, now).cost == 5
    later = now + timedelta(days=2)
    closed = budget_ledger.with_charges(second, [lingered, other], later)
    assert (closed.charged, closed.closed_through) == ({}, 100)
    assert budget_ledger.with_charges(closed, [lingered, other], later) is closed


def test_wall_time_of_a_working_agent_passes_without_summaries() -> None:
    """Wall time is charged in steps of a minute, but not while the sandbox is paused."""
    working = use(UsedByKind(wall_time=10), state="running")
    book = budget_ledger.with_charges(ProjectLedger(project="p1"), [working], T0)
    assert budget_ledger.with_charges(book, [working], after(59)) is book
    assert day(budget_ledger.with_charges(book, [working], after(60)), after(60)).wall_time == 70
    assert use(UsedByKind(wall_time=10), state="paused").used_at(after(100)).wall_time == 10


def test_usage_that_is_not_reported_is_unmetered() -> None:
    """Usage is metered until a turn has ended. If a harness reports no costs, only its cost is unmetered."""

    def of(turns: int = 1, state: Any = "running", **spending: Any) -> SandboxUse:
        usage = SandboxUsage(**spending)
        summary: dict[str, Any] = {"project": "p1", "sandbox": "s", "started_at": T0, "updated_at": T0, "sequence": 1}
        return SandboxUse.of(SandboxSummary(**summary, state=state, turns=turns, spending=usage))

    assert (of(0).metered, of(0, "finished").metered) == (True, False)
    assert (of(metered=True).metered, of(metered=True).priced) == (True, False)
    assert of(metered=True, priced=True).priced
    assert not of(metered=True, priced=True, unmetered_turns=1).priced
    assert not of(metered=True, priced=True, implausible=1).metered
    assert budget_decisions.is_metered("turns", [of()])
    assert not budget_decisions.is_metered("cost", [of(metered=True)])


# --- tasks -------------------------------------------------------------------------------------------------------


def limits_of(task: TaskLedger, usual: str = "turns=100") -> dict[str, BudgetLimit]:
    found = budget_decisions.limits_of_task(task, [], BudgetLimits.model_validate(usual))
    return {limit.kind: limit for limit in found}


def test_attempts_share_one_budget_that_never_decreases() -> None:
    """The usage is the sum over all sandboxes of the task, also of sandboxes whose summaries have expired."""
    task = budget_ledger.with_usage(
        TaskLedger(project="p1", task="t"), [use(UsedByKind(5, turns=2)), use(UsedByKind(3), "sbx-2")], T0
    )
    task = budget_ledger.with_usage(
        task, [use(UsedByKind(1), "sbx-2"), use(UsedByKind(4), "sbx-3", budget=BudgetLimits(turns=9))], T0
    )
    assert budget_ledger.usage_of_task(task) == UsedByKind(12, turns=2)
    assert (limits_of(task)["turns"].limit, limits_of(task)["turns"].used) == (9, 2)
    assert limits_of(task)["tokens"].limit is None


def test_grant_counts_once_and_raises_the_limit() -> None:
    """A grant that is repeated under its name changes nothing. A kind without a limit stays without one."""
    task = TaskLedger(project="p1", task="t")
    granted = budget_ledger.with_grant(task, "g1", BudgetLimits(turns=5, tokens=7))
    assert budget_ledger.with_grant(granted, "g1", BudgetLimits(turns=5)) is granted
    more = budget_ledger.with_grant(granted, "g2", BudgetLimits(turns=1))
    assert (limits_of(more)["turns"].limit, limits_of(more)["turns"].granted) == (106, 6)
    assert limits_of(more)["tokens"].limit is None


# --- decisions ---------------------------------------------------------------------------------------------------


def limit(used: int, maximum: int | None = 100) -> BudgetLimit:
    return BudgetLimit("project", "p1", None, "day", "cost", maximum, used)


def names(marks: Mapping[str, ReachedLimit]) -> list[tuple[str, bool]]:
    return sorted((name.removeprefix("day.cost."), mark.published) for name, mark in marks.items())


def test_limits_are_reached_at_four_fifths_and_all() -> None:
    """Each mark is set once. There is no warning for a limit that is exceeded at once."""
    assert budget_decisions.updated_marks({}, [limit(79), limit(999, None)], T0) == {}
    warned = budget_decisions.updated_marks({}, [limit(80)], T0)
    assert names(warned) == [("warned", False)]
    assert budget_decisions.updated_marks(warned, [limit(99)], after(9)) is warned
    exceeded = budget_decisions.updated_marks(warned, [limit(100)], after(10))
    assert names(exceeded) == [("exceeded", False), ("warned", True)]
    assert exceeded["day.cost.exceeded"].at == after(10)
    assert names(budget_decisions.updated_marks({}, [limit(500)], T0)) == [("exceeded", False), ("warned", True)]


def test_raised_limit_and_a_window_that_moves_on_clear_what_was_reached() -> None:
    """A limit that is raised, and still exceeded, keeps its time.

    A limit that is no longer exceeded may be reached again.
    """
    exceeded = budget_decisions.updated_marks({}, [limit(100)], T0)
    still = budget_decisions.updated_marks(exceeded, [limit(130, 120)], after(5))
    assert (still["day.cost.exceeded"].at, still["day.cost.exceeded"].limit) == (T0, 120)
    raised = budget_decisions.updated_marks(exceeded, [limit(100, 125)], after(5))
    assert names(raised) == [("warned", False)]
    assert names(budget_decisions.updated_marks(exceeded, [limit(99)], after(5))) == [("warned", True)]
    assert names(budget_decisions.updated_marks(exceeded, [limit(69)], after(5))) == []


def test_agent_is_stopped_after_the_time_to_end_its_work() -> None:
    """The time counts from when the limit was reached, or the sandbox began.

    The command is repeated until the sandbox ends.
    """
    one = use(started_at=after(-50))
    assert budget_decisions.previous_stops(one, T0, 60, after(59)) is None
    assert budget_decisions.previous_stops(one, T0, 60, after(60)) == 0
    assert budget_decisions.previous_stops(one, T0, 60, after(60 + budget_decisions.REPEAT_STOP)) == 1
    assert budget_decisions.previous_stops(replace(one, started_at=after(30)), T0, 60, after(60)) is None


def test_text_names_the_exceeded_budget() -> None:
    """If several limits are exceeded, the text names the first."""
    assert budget_decisions.block_of([limit(99)]) is None
    assert budget_decisions.block_of([limit(99), replace(limit(2_500_000, 2_000_000), window="month")]) == (
        "project p1 has used 2.50 USD of 2.00 USD of a month"
    )


def test_own_limits_take_precedence_kind_by_kind() -> None:
    """The limits of a project are those that an operator has set, else those of the settings."""
    own = WindowLimits(day=BudgetLimits(turns=5))
    usual = WindowLimits(day=BudgetLimits(turns=9, tokens=8))
    found = {
        (one.window, one.kind): one.limit for one in budget_decisions.limits_of_windows("p1", {}, (own, usual), T0)
    }
    assert (found["day", "turns"], found["day", "tokens"], found["month", "turns"]) == (5, 8, None)


# --- the text of limits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("cost=2usd,tokens=500k", {"cost_micro_usd": 2_000_000, "tokens": 500_000}),
        ("cost=0.5usd,wall_time=2h,turns=3", {"cost_micro_usd": 500_000, "wall_seconds": 7200, "turns": 3}),
    ],
)
def test_limits_are_read_from_text(text: str, wanted: dict[str, int]) -> None:
    """Each kind of budget has its own units."""
    assert BudgetLimits.model_validate(text).model_dump() == wanted


@pytest.mark.parametrize("text", ["cost=2", "cost=0usd", "tokens=1.5", "turns=-1", "wall_time=5", "other=1", "cost"])
def test_invalid_limits_are_refused(text: str) -> None:
    """Invalid are money without a currency, no amount, a part of a token, and unknown kinds."""
    with pytest.raises(ValidationError):
        BudgetLimits.model_validate(text)


@pytest.mark.parametrize("text", ["s3cret", "cost=s3cret", "turns=5,s3cret=1"])
def test_refused_limits_are_not_quoted(text: str) -> None:
    """The text may be anything that a client has sent; the refusal names the place instead."""
    with pytest.raises(ValidationError) as limits:
        BudgetLimits.model_validate(text)
    with pytest.raises(ValidationError) as budgets:
        HerdBudgets.model_validate(f"task.cost=5usd,{text},project.{text}")
    for error in (*limits.value.errors(), *budgets.value.errors()):
        assert "s3cret" not in error["msg"]
