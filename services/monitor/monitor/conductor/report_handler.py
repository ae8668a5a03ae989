"""Replies to requests for reports of projects.

A report is made from the Conductor's record, summaries and ledgers of budgets, so that every replica can reply.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from monitor.conductor import coherence, project_report
from monitor.conductor.conductor_ledger import ConductorLedger, FindingRecord
from monitor.conductor.feeds import summaries_of
from monitor.conductor.ledger_store import read_ledgers
from sandherd.contracts.names import FLEET
from sandherd.contracts.records import SandboxSummary
from sandherd.contracts.requests.budgets import BudgetLine
from sandherd.contracts.requests.monitor import InterventionView
from sandherd.contracts.requests.monitor_report import (
    MAX_LAST,
    MAX_LISTED,
    MAX_PROJECTS,
    GetMonitorReport,
    HindranceView,
    MonitorReport,
    NeedView,
    ProjectReport,
    SteeredView,
)
from sandherd.service.service import IncomingRequest, Service

MAX_REPLY: Final = 900 * 1024
"""Maximum size of all reports together, in bytes: less than the maximum of a message."""
_LIST_FIELDS: Final = ("findings", "interventions", "budgets", "needs")
_LIVE_STATES: Final = frozenset({"running", "waiting", "paused"})
_COPIED_FIELDS: Final = (
    *("kind", "sandbox", "task", "other", "other_task", "severity", "cause", "similarity"),
    *("since", "informed_at", "notified_at", "paused_at"),
)


class ReportHandler:
    """Replies to requests for a report."""

    def __init__(
        self, service: Service, budgets: Callable[[str], Awaitable[dict[str, list[BudgetLine]] | None]]
    ) -> None:
        self._service = service
        self._budgets = budgets

    async def answer(self, incoming: IncomingRequest[GetMonitorReport]) -> MonitorReport:
        """The report of the subject's project; of all projects for `fleet`."""
        bus, project = self._service.bus, incoming.project
        ledgers = await read_ledgers(bus, project)
        summaries = await summaries_of(bus, "*" if project == FLEET else project)
        budgets = await self._budgets(project)
        by_project: dict[str, list[SandboxSummary]] = {}
        for summary in summaries:
            by_project.setdefault(summary.project, []).append(summary)
        reports = [
            report_of(
                name,
                ledgers.get(name, ConductorLedger()),
                by_project.get(name, []),
                None if budgets is None else budgets.get(name, []),
            )
            for name in _project_names(project, ledgers, by_project, budgets or {})
        ]
        return MonitorReport(
            mode=self._service.settings.conductor, projects=fit_reports(reports), budgets=(budgets or {}).get(FLEET)
        )


def fit_reports(reports: list[ProjectReport]) -> list[ProjectReport]:
    """The reports, shortened so that all fit in a reply.

    Only reports that need more than their share have shortened lists.
    """
    if sum(map(_size, reports)) <= MAX_REPLY:
        return reports
    return [_shorten(report, MAX_REPLY // len(reports)) for report in reports]


def _shorten(report: ProjectReport, share: int) -> ProjectReport:
    while _size(report) > share and any(getattr(report, name) for name in _LIST_FIELDS):
        halves = {name: rows[: len(rows) // 2] for name in _LIST_FIELDS if (rows := getattr(report, name)) is not None}
        report = report.model_copy(update=halves)
    return report


def _size(report: ProjectReport) -> int:
    return len(report.model_dump_json())


def _project_names(
    project: str,
    ledgers: Iterable[str],
    summaries: Mapping[str, Sequence[SandboxSummary]],
    budgets: Mapping[str, Sequence[BudgetLine]],
) -> list[str]:
    """The projects of the report: the requested one, or all projects with something to report."""
    if project != FLEET:
        return [project]
    live = {name for name, project_summaries in summaries.items() if any(map(_is_live, project_summaries))}
    exceeded = {name for name, lines in budgets.items() if any(line.exceeded_at for line in lines)}
    return sorted((live | exceeded | set(ledgers)) - {FLEET})[:MAX_PROJECTS]


def _is_live(summary: SandboxSummary) -> bool:
    return summary.state in _LIVE_STATES and summary.task is not None


def report_of(
    project: str,
    ledger: ConductorLedger,
    summaries: Sequence[SandboxSummary],
    budgets: Sequence[BudgetLine] | None = None,
) -> ProjectReport:
    """The report of a project with the summaries of its sandboxes, and its limits."""
    sandboxes = {summary.sandbox: summary for summary in summaries if _is_live(summary)}
    findings = sorted(
        (finding for finding in ledger.findings if finding.open),
        key=lambda finding: (-coherence.weight_of(finding), finding.since, finding.key),
    )
    score = coherence.score_of(sandboxes, findings)
    return ProjectReport(
        project=project,
        coherence_score=score,
        status=coherence.status_of(score),
        reasons=coherence.reasons_of(findings),
        recommendations=project_report.recommendations(ledger),
        sandboxes=len(sandboxes),
        findings=[_finding_view(finding) for finding in findings[:MAX_LISTED]],
        finding_count=len(findings),
        interventions=list(_interventions(sandboxes.values(), ledger))[:MAX_LISTED],
        outcomes=Counter(steering.outcome or "pending" for summary in summaries for steering in summary.steerings),
        budgets=None if budgets is None else _by_used_share(budgets),
        needs=sorted(_needs(sandboxes, findings, budgets or ()), key=lambda need: need.since)[:MAX_LISTED],
    )


def _finding_view(finding: FindingRecord) -> HindranceView:
    copied: dict[str, Any] = {name: getattr(finding, name) for name in _COPIED_FIELDS}
    return HindranceView(
        finding_id=str(finding.id),
        file_path=finding.path or None,
        paths=list(finding.paths),
        lines=list(finding.lines) if finding.lines else None,
        other_lines=list(finding.other_lines) if finding.other_lines else None,
        **copied,
    )


def _by_used_share(lines: Iterable[BudgetLine]) -> list[BudgetLine]:
    """The limits of the project first, then the limits of tasks with the largest used share."""
    return sorted(lines, key=lambda line: (line.scope == "task", -(line.share or 0)))[:MAX_LISTED]


def _interventions(live: Iterable[SandboxSummary], ledger: ConductorLedger) -> Iterator[SteeredView]:
    for summary in live:
        informed = ledger.informed.get(summary.sandbox)
        if summary.interventions or summary.findings or informed is not None:
            yield SteeredView(
                sandbox=summary.sandbox,
                task=summary.task,
                interventions=summary.interventions,
                informed_at=informed,
                findings=[finding.rule for finding in summary.findings],
                last=[InterventionView(**dict(steering)) for steering in summary.steerings[-MAX_LAST:]],
            )


def _needs(
    live: dict[str, SandboxSummary], findings: Iterable[FindingRecord], budgets: Iterable[BudgetLine]
) -> Iterator[NeedView]:
    """Everything that waits for a user, each once.

    These are sandboxes that are paused or wait for an approval, and exceeded budgets of the project and of its tasks
    with a live sandbox.
    """
    exceeded_since: dict[str | None, datetime] = {}
    for line in budgets:
        if line.exceeded_at is not None:
            exceeded_since[line.task] = min(line.exceeded_at, exceeded_since.get(line.task, line.exceeded_at))
    sandbox_of_task = {summary.task: summary.sandbox for summary in live.values()}
    for task, since in exceeded_since.items():
        yield NeedView(sandbox=sandbox_of_task.get(task) if task else None, task=task, reason="budget", since=since)
    listed: set[str] = set()
    for summary in live.values():
        if summary.state in {"waiting", "paused"}:
            listed.add(summary.sandbox)
            yield NeedView(
                sandbox=summary.sandbox,
                task=summary.task,
                reason=summary.state,
                since=summary.updated_at,
                approval_id=_requested_approval(summary),
            )
    for finding in findings:
        if finding.notified_at is not None and finding.sandbox in live and finding.sandbox not in listed:
            listed.add(finding.sandbox)
            yield NeedView(sandbox=finding.sandbox, task=finding.task, reason="coordination", since=finding.notified_at)


def _requested_approval(summary: SandboxSummary) -> str | None:
    """The approval that the guardian has requested, if the sandbox is paused for that."""
    last = summary.steerings[-1] if summary.steerings else None
    return last.approval_id if last is not None and last.outcome is None and summary.state == "paused" else None
