"""The report of a project: when it is published, and what it contains. Pure."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from monitor.conductor import coherence
from monitor.conductor.conductor_decisions import SEVERE_CONFLICTS
from monitor.conductor.conductor_ledger import ConductorLedger, LastReport, output_of
from monitor.conductor.members import ProjectMember
from sandherd.contracts.events.monitor import MonitorConductorReported
from sandherd.contracts.names import FLEET
from sandherd.plurals import pluralize

MIN_REPORT_INTERVAL: Final = 60.0
"""Minimum seconds between two reports of a project."""


def assess(ledger: ConductorLedger, members: Iterable[ProjectMember], now: datetime) -> LastReport:
    """The coherence of a project now."""
    live = {member.sandbox for member in members if member.live}
    findings = [finding for finding in ledger.findings if finding.open]
    score = coherence.score_of(live, findings)
    reasons = tuple(coherence.reasons_of(findings))
    return LastReport(at=now, score=score, status=coherence.status_of(score), sandboxes=len(live), reasons=reasons)


def seconds_until_report(ledger: ConductorLedger, current: LastReport) -> float | None:
    """Seconds until the next report may be published. None if the last report is still correct."""
    last = ledger.reported
    if last is None:
        return 0.0 if current.reasons else None
    if (last.score, last.reasons) == (current.score, current.reasons):
        return None
    return max(0.0, MIN_REPORT_INTERVAL - (current.at - last.at).total_seconds())


def add_report(ledger: ConductorLedger, report: LastReport) -> ConductorLedger:
    """The ledger with a report, and with the event that publishes it."""
    kinds = [finding.kind for finding in ledger.findings if finding.open]
    event = MonitorConductorReported(
        status=report.status,
        coherence_score=report.score,
        sandboxes=report.sandboxes,
        reasons=list(report.reasons),
        recommendations=recommendations(ledger),
        conflicts=kinds.count("conflict"),
        duplicates=kinds.count("duplicate"),
        dependencies=kinds.count("dependency"),
    )
    output = output_of(event, FLEET, None, report.at)
    return ledger.model_copy(update={"reported": report, "outbox": (*ledger.outbox, output)})


def recommendations(ledger: ConductorLedger) -> list[str]:
    """Advice for users about open findings: one line for each kind."""
    findings = [finding for finding in ledger.findings if finding.open]
    duplicates = sorted({finding.sandbox for finding in findings if finding.kind == "duplicate"})
    severe = sorted({finding.sandbox for finding in findings if finding.severity in SEVERE_CONFLICTS})
    stale = sorted({finding.sandbox for finding in findings if finding.kind == "dependency"})
    lines = [
        (duplicates, "decide whether {} needed, as an earlier one does the same"),
        (severe, "let the earlier one finish before {} continued: `sandherd sandboxes pause`"),
        (stale, "check the results of {}: what it builds on has changed"),
    ]
    return [line.format(_first_names(names, line)) for names, line in lines if names]


def _first_names(names: Sequence[str], line: str) -> str:
    text = ", ".join(names[:3]) + (f" and {pluralize(len(names) - 3, 'other')}" if len(names) > 3 else "")
    if line.startswith("check"):
        return text
    return f"{text} {'is' if len(names) == 1 else 'are'}"
