"""The report of a project: interventions with outcomes, budgets, and what waits for a user."""

from datetime import UTC, datetime, timedelta
from typing import Any

from monitor.conductor.conductor_ledger import ConductorLedger
from monitor.conductor.report_handler import report_of
from sandherd.contracts.records import SandboxSummary, SteeringSummary, SummaryState
from sandherd.contracts.requests import BudgetLine

T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)


def sandbox(name: str, state: SummaryState = "running", *steerings: SteeringSummary) -> SandboxSummary:
    known: dict[str, Any] = {"project": "p1", "task": f"task-{name}", "sequence": 1}
    return SandboxSummary(
        **known,
        sandbox=f"sbx-{name}",
        state=state,
        started_at=T0,
        updated_at=T0,
        interventions=len(steerings),
        steerings=steerings,
    )


def steering(number: int, outcome: str | None, **fields: Any) -> SteeringSummary:
    known = {"number": number, "rule": "loop", "step": "nudge", "decided_at": T0, "outcome": outcome}
    return SteeringSummary.model_validate(known | fields)


def line(task: str | None, share: float, **fields: Any) -> BudgetLine:
    scope: Any = "task" if task else "project"
    return BudgetLine(scope=scope, project="p1", task=task, budget="turns", limit=10, used=1, share=share, **fields)


def test_interventions_have_their_outcomes() -> None:
    """Interventions of live sandboxes are listed; outcomes of ended sandboxes are counted, too."""
    live = sandbox("1", "running", steering(1, "ignored"), steering(2, None))
    report = report_of("p1", ConductorLedger(), [live, sandbox("2", "ended", steering(1, "ignored"))])
    assert [(one.sandbox, [last.outcome for last in one.last]) for one in report.interventions] == [
        ("sbx-1", ["ignored", None])
    ]
    assert report.outcomes == {"ignored": 2, "pending": 1}


def test_what_is_over_budget_waits_for_a_user() -> None:
    """The project is listed once, and each of its tasks once, with its live sandbox. The project's limits are first."""
    later = T0 + timedelta(hours=1)
    lines = [
        line("task-1", 1.2, exceeded_at=later),
        line("task-1", 0.9, warned_at=T0),
        line(None, 1, exceeded_at=T0),
        line(None, 3, exceeded_at=later),
    ]
    report = report_of("p1", ConductorLedger(), [sandbox("1")], lines)
    assert [(one.reason, one.sandbox, one.task, one.since) for one in report.needs] == [
        ("budget", None, None, T0),
        ("budget", "sbx-1", "task-1", later),
    ]
    assert [(one.task, one.share) for one in report.budgets or ()] == [
        *((None, 3), (None, 1), ("task-1", 1.2), ("task-1", 0.9)),
    ]


def test_ledgers_that_can_not_be_read_are_no_empty_list() -> None:
    """The report has no budgets, and everything else."""
    report = report_of("p1", ConductorLedger(), [sandbox("1")])
    assert (report.budgets, report.sandboxes) == (None, 1)


def test_a_pause_names_its_approval_until_it_has_an_outcome() -> None:
    """A user who reads the report can answer it."""
    open_pause = steering(1, None, step="pause", approval_id="pause-1")
    closed = steering(1, "obeyed", step="pause", approval_id="pause-1")
    report = report_of("p1", ConductorLedger(), [sandbox("1", "paused", open_pause), sandbox("2", "paused", closed)])
    assert {one.sandbox: one.approval_id for one in report.needs} == {"sbx-1": "pause-1", "sbx-2": None}
