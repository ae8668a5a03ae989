"""Generates the tables of docs/conductor.md from the numbers that the Conductor uses."""

from typing import Final

from pages import code, table

from monitor.conductor import (
    coherence,
    conductor_decisions,
    conductor_ledger,
    evidence,
    herd_index,
    ignored_files,
    message_texts,
    project_report,
    similarity,
)
from sandherd.settings.coordination import IGNORED_FILES

_MEANINGS: Final = {
    "file": "two live sandboxes edit the same file",
    "lines": "two live sandboxes edit overlapping lines",
    "merge": "a trial merge of their branches has conflicts",
    "duplicate": "two tasks seem to be the same; it counts for the later sandbox only",
    "dependency": "the base, or a task that it builds on, has changed",
}


def weights() -> str:
    """The weights of the coherence."""
    return table(
        ("finding", "weight", "meaning"),
        ((code(name), f"{weight:g}", _MEANINGS[name]) for name, weight in coherence.WEIGHTS.items()),
    )


def numbers() -> str:
    """The thresholds and limits, each with its meaning and where it comes from."""
    proposal = "our choice"
    return table(
        ("number", "value", "source"),
        (
            ("weight of the titles", f"{similarity.TEXT_WEIGHT:g}", "PRSense"),
            ("weight of the edited files", f"{similarity.FILES_WEIGHT:g}", "PRSense"),
            ("minimum similarity of duplicates that have both edited files", f"{similarity.THRESHOLD:g}", "OmoiOS"),
            ("minimum similarity of duplicates, by titles alone", f"{similarity.TEXT_THRESHOLD:g}", "Hephaestus"),
            ("a finding is withdrawn at this much less similarity", f"{similarity.HYSTERESIS:g}", proposal),
            ("tokens in a shingle", similarity.SHINGLE_TOKENS, proposal),
            (
                "maximum distance of overlapping edits, in lines",
                evidence.MAX_LINE_DISTANCE,
                "the context of a hunk in git",
            ),
            ("maximum editors of a file that are compared: the first", herd_index.MAX_EDITORS, proposal),
            (
                "maximum titles with a shingle; more frequent ones are ignored",
                herd_index.MAX_TITLES_OF_SHINGLE,
                proposal,
            ),
            (
                "maximum number of findings of a pair: the most severe ones",
                conductor_ledger.MAX_FILES_OF_PAIR,
                proposal,
            ),
            ("maximum number of findings of a project", conductor_ledger.MAX_FINDINGS, proposal),
            (
                "maximum size of the paths in these findings, in bytes",
                conductor_ledger.MAX_PATH_BYTES,
                "the maximum size of a message of the broker",
            ),
            ("maximum number of files that a message names", message_texts.MAX_FILES, proposal),
            ("maximum size of a compared path, in bytes", ignored_files.MAX_PATH, proposal),
            (
                "maximum seconds until an undelivered message expires",
                conductor_decisions.MESSAGE_EXPIRES,
                "as for a nudge of the guardian",
            ),
            ("minimum seconds between two reports of a project", f"{project_report.MIN_REPORT_INTERVAL:g}", proposal),
            ("minimum coherence of the status `coherent`", f"{coherence.COHERENT:g}", proposal),
            (
                "minimum of `strained`; a lower coherence is `conflicted`",
                f"{coherence.CONFLICTED:g}",
                "escalation of Hephaestus",
            ),
        ),
    )


def ignored() -> str:
    """The files that are ignored by default."""
    return ", ".join(code(pattern) for pattern in sorted(IGNORED_FILES)) + "\n"
