"""The coherence of a project: how little its live sandboxes hinder each other, from 0 to 1. Pure.

    coherence = 1 - sum over live sandboxes of min(1, weight of its worst open finding) / number of live sandboxes

Each sandbox counts with its worst finding, so several files of one pair count as one. The coherence is 1 without
findings or without a live sandbox. A finding can only lower it.
"""

from collections.abc import Collection, Iterable
from typing import Final

from monitor.conductor.conductor_ledger import FindingRecord
from sandherd.plurals import pluralize

WEIGHTS: Final = {"file": 0.2, "lines": 0.5, "merge": 1.0, "duplicate": 0.8, "dependency": 0.3}
"""The fraction of a sandbox's work that may have to be repeated because of a finding. A duplicate counts for the later
sandbox only, because the work of the first is needed. A conflict counts for both, because either work may have to be
repeated."""
COHERENT: Final = 0.8
"""Minimum score of a coherent project."""
CONFLICTED: Final = 0.5
"""A project with a lower score is conflicted."""
_MAX_REASONS: Final = 10


def weight_of(finding: FindingRecord) -> float:
    """The weight of a finding."""
    return WEIGHTS[finding.severity or finding.kind]


def score_of(sandboxes: Collection[str], findings: Iterable[FindingRecord]) -> float:
    """The coherence of these live sandboxes, rounded to three decimals."""
    worst_weights: dict[str, float] = {}
    for finding in findings:
        affected = (finding.sandbox,) if finding.kind == "duplicate" else finding.sandboxes
        for sandbox in affected:
            worst_weights[sandbox] = max(worst_weights.get(sandbox, 0.0), weight_of(finding))
    lost = sum(weight for sandbox, weight in worst_weights.items() if sandbox in sandboxes)
    return round(1 - lost / len(sandboxes), 3) if sandboxes else 1.0


def status_of(score: float) -> str:
    """The score in one term: `coherent`, `strained` or `conflicted`."""
    return "coherent" if score >= COHERENT else "strained" if score >= CONFLICTED else "conflicted"


def reasons_of(findings: Iterable[FindingRecord]) -> list[str]:
    """The reasons for a score below 1: the open findings, the heaviest first.

    They contain no paths and titles, because sandboxes choose these.
    """
    groups: dict[tuple[float, str, str, str], int] = {}
    for finding in findings:
        key = -weight_of(finding), _template_of(finding), finding.sandbox, finding.other
        groups[key] = groups.get(key, 0) + 1
    lines = [
        template.format(sandbox=sandbox, other=other) + (f" ({pluralize(count, 'finding')})" if count > 1 else "")
        for (_weight, template, sandbox, other), count in sorted(groups.items())
    ]
    omitted = len(lines) - _MAX_REASONS
    return [*lines[:_MAX_REASONS], *([f"and {omitted} more"] if omitted > 0 else [])]


_TEMPLATES: Final = {
    "file": "{sandbox} and {other} edit the same file",
    "lines": "{sandbox} and {other} edit the same lines",
    "merge": "the branches of {sandbox} and {other} can't be merged",
    "duplicate": "{sandbox} does the same as {other}",
    "task": "task {other}, on which {sandbox} builds, has changed",
    "base": "branch {other}, on which {sandbox} builds, has changed",
}


def _template_of(finding: FindingRecord) -> str:
    return _TEMPLATES[finding.severity or finding.cause or finding.kind]
