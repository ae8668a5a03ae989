"""Shows the result of `sandherd monitor report`."""

from collections.abc import Sequence
from typing import Final

from sandherd.cli.herd_session import Work
from sandherd.cli.options import Format
from sandherd.cli.render import budgets, console
from sandherd.cli.render.table import Column
from sandherd.client.herd import Herd
from sandherd.client.terminal_text import write_text
from sandherd.contracts.requests import HindranceView, MonitorReport, ProjectReport

_CONDUCTOR_OFF: Final = (
    "sandboxes are not compared: set SANDHERD_CONDUCTOR of the monitor to report, inform, ask or pause"
)
_FINDINGS_HEADER: Final = (
    "KIND",
    "SANDBOX",
    "OTHER",
    Column("ABOUT", 3, cut=True),
    Column("SINCE", 2),
    Column("DONE", 1),
)
_INTERVENTIONS_HEADER: Final = ("SANDBOX", "TASK", "INTERVENTIONS", "INFORMED", Column("PATTERNS", 2))
_OUTCOMES_HEADER: Final = ("SANDBOX", "NUMBER", "RULE", "STEP", "DECIDED", "OUTCOME")
_NEEDS_HEADER: Final = ("SANDBOX", "TASK", "REASON", "SINCE", Column("APPROVAL", 1))
_BUDGETS_UNKNOWN: Final = "budgets are unknown: their ledgers can't be read at present"


def show_report(output: Format) -> Work:
    """A function that requests the report and shows it."""

    async def work(herd: Herd) -> int:
        report = await herd.monitor_report()
        if output.is_json:
            console.print_document(output, report)
        else:
            _show(report, wide=output is Format.WIDE)
        return 0

    return work


def _show(report: MonitorReport, *, wide: bool) -> None:
    for index, project in enumerate(report.projects):
        if index:
            write_text("")
        console.print_facts(_facts(project))
        for title, header, rows in _tables(project):
            if rows:
                write_text(f"\n{title}")
                console.print_table(header, rows, wide=wide)
    if report.budgets:
        write_text("\nbudgets of the herd")
        console.print_table(budgets.HEADER, budgets.rows(report.budgets), wide=wide)
    if any(project.budgets is None for project in report.projects):
        write_text(_BUDGETS_UNKNOWN)
    if report.mode == "off":
        write_text(_CONDUCTOR_OFF)


def _facts(project: ProjectReport) -> dict[str, object]:
    return {
        "project": project.project,
        "coherence": f"{project.coherence_score:.2f} ({project.status})",
        "sandboxes": project.sandboxes,
        "outcomes": ", ".join(f"{count} {outcome}" for outcome, count in sorted(project.outcomes.items())),
        "because": "; ".join(project.reasons),
        "advice": "; ".join(project.recommendations),
    }


def _tables(project: ProjectReport) -> list[tuple[str, Sequence[str | Column], Sequence[Sequence[object]]]]:
    return [
        (
            f"open findings: {project.finding_count}",
            _FINDINGS_HEADER,
            [_finding_row(finding) for finding in project.findings],
        ),
        (
            "interventions",
            _INTERVENTIONS_HEADER,
            [
                [view.sandbox, view.task, view.interventions, view.informed_at, ", ".join(view.findings)]
                for view in project.interventions
            ],
        ),
        (
            "last interventions",
            _OUTCOMES_HEADER,
            [
                [view.sandbox, last.number, last.rule, last.step, last.decided_at, last.outcome or "pending"]
                for view in project.interventions
                for last in view.last
            ],
        ),
        ("budgets", budgets.HEADER, budgets.rows(project.budgets or ())),
        (
            "sandboxes that need a user",
            _NEEDS_HEADER,
            [[need.sandbox, need.task, need.reason, need.since, need.approval_id] for need in project.needs],
        ),
    ]


def _finding_row(view: HindranceView) -> list[object]:
    about = view.file_path or ", ".join(view.paths)
    if view.similarity is not None:
        about = f"similarity {view.similarity:.2f}"
    actions = [
        name
        for name, at in (("informed", view.informed_at), ("asked", view.notified_at), ("paused", view.paused_at))
        if at is not None
    ]
    kind = f"{view.kind} ({view.severity or view.cause})" if view.severity or view.cause else view.kind
    return [kind, view.sandbox, view.other, about, view.since, ", ".join(actions)]
