"""The report of a project: from the Conductor's record and the summaries, so that every replica can reply."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from monitor.conductor import assessment, coherence
from monitor.conductor.feeds import summaries_of
from monitor.conductor.ledger import FindingRecord, Ledger
from monitor.conductor.ledger_store import read_ledgers
from sandherd.contracts.names import FLEET
from sandherd.contracts.records import SandboxSummary
from sandherd.contracts.requests.monitor_report import (
    MAX_LISTED,
    MAX_PROJECTS,
    AskMonitorReport,
    HindranceView,
    MonitorReport,
    NeedView,
    ProjectReport,
    SteeredView,
)
from sandherd.service.service import IncomingRequest, Service

MAX_REPLY: Final = 900 * 1024
"""Bytes of all reports together, below the maximum of a message."""
_LISTS: Final = ("findings", "interventions", "needs")
_LIVE: Final = frozenset({"running", "waiting", "paused"})
_SAME: Final = (
    *("kind", "sandbox", "task", "other", "other_task", "severity", "cause", "similarity"),
    *("since", "informed_at", "notified_at", "paused_at"),
)


class ReportHandler:
    """Replies to requests for a report."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def answer(self, incoming: IncomingRequest[AskMonitorReport]) -> MonitorReport:
        """The report of the subject's project; of all projects for `fleet`."""
        bus, project = self._service.bus, incoming.project
        ledgers = await read_ledgers(bus, project)
        summaries = await summaries_of(bus, "*" if project == FLEET else project)
        by_project: dict[str, list[SandboxSummary]] = {} if project == FLEET else {project: []}
        for summary in summaries:
            if summary.state in _LIVE and summary.task is not None:
                by_project.setdefault(summary.project, []).append(summary)
        names = sorted(by_project.keys() | ledgers.keys())[:MAX_PROJECTS]
        reports = [report_of(name, ledgers.get(name, Ledger()), by_project.get(name, [])) for name in names]
        return MonitorReport(mode=self._service.settings.conductor, projects=fitting(reports))


def fitting(reports: list[ProjectReport]) -> list[ProjectReport]:
    """The reports, so that all fit in a reply: lists of those that need more than their share of it are shortened."""
    if sum(map(_size, reports)) <= MAX_REPLY:
        return reports
    return [_shortened(report, MAX_REPLY // len(reports)) for report in reports]


def _shortened(report: ProjectReport, share: int) -> ProjectReport:
    while _size(report) > share and any(getattr(report, name) for name in _LISTS):
        halves = {name: rows[: len(rows) // 2] for name in _LISTS if (rows := getattr(report, name)) is not None}
        report = report.model_copy(update=halves)
    return report


def _size(report: ProjectReport) -> int:
    return len(report.model_dump_json())


def report_of(project: str, ledger: Ledger, live: Iterable[SandboxSummary]) -> ProjectReport:
    """The report of a project with these live sandboxes."""
    sandboxes = {summary.sandbox: summary for summary in live}
    findings = sorted(
        (one for one in ledger.findings if one.open), key=lambda one: (-coherence.weight_of(one), one.since, one.key)
    )
    score = coherence.score_of(sandboxes, findings)
    return ProjectReport(
        project=project,
        coherence_score=score,
        status=coherence.status_of(score),
        reasons=coherence.reasons_of(findings),
        recommendations=assessment.recommendations(ledger),
        sandboxes=len(sandboxes),
        findings=[_view(finding) for finding in findings[:MAX_LISTED]],
        finding_count=len(findings),
        interventions=list(_interventions(sandboxes.values(), ledger))[:MAX_LISTED],
        needs=sorted(_needs(sandboxes, findings), key=lambda need: need.since)[:MAX_LISTED],
    )


def _view(finding: FindingRecord) -> HindranceView:
    facts: dict[str, Any] = {name: getattr(finding, name) for name in _SAME}
    return HindranceView(
        finding_id=str(finding.id),
        file_path=finding.path or None,
        paths=list(finding.paths),
        lines=list(finding.lines) if finding.lines else None,
        other_lines=list(finding.other_lines) if finding.other_lines else None,
        **facts,
    )


def _interventions(live: Iterable[SandboxSummary], ledger: Ledger) -> Iterator[SteeredView]:
    for summary in live:
        informed = ledger.informed.get(summary.sandbox)
        if summary.interventions or summary.findings or informed is not None:
            yield SteeredView(
                sandbox=summary.sandbox,
                task=summary.task,
                interventions=summary.interventions,
                informed_at=informed,
                findings=[finding.rule for finding in summary.findings],
            )


def _needs(live: dict[str, SandboxSummary], findings: Iterable[FindingRecord]) -> Iterator[NeedView]:
    """Sandboxes that wait for a user, each once: what it waits for first is that it is paused or waits."""
    named: set[str] = set()
    for summary in live.values():
        if summary.state in {"waiting", "paused"}:
            named.add(summary.sandbox)
            yield NeedView(sandbox=summary.sandbox, task=summary.task, reason=summary.state, since=summary.updated_at)
    for finding in findings:
        if finding.notified_at is not None and finding.sandbox in live and finding.sandbox not in named:
            named.add(finding.sandbox)
            yield NeedView(sandbox=finding.sandbox, task=finding.task, reason="coordination", since=finding.notified_at)
