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
            ("weight of titles", f"{similarity.TEXT_WEIGHT:g}", "PRSense"),
            ("weight of edited files", f"{similarity.FILES_WEIGHT:g}", "PRSense"),
            ("similarity of a duplicate, if both have edited files", f"{similarity.THRESHOLD:g}", "OmoiOS"),
            ("similarity of a duplicate, by titles alone", f"{similarity.TEXT_THRESHOLD:g}", "Hephaestus"),
            ("how far below it a finding is withdrawn", f"{similarity.HYSTERESIS:g}", proposal),
            ("tokens of a shingle", similarity.SHINGLE_TOKENS, proposal),
            ("lines between edits that overlap", evidence.MAX_LINE_DISTANCE, "the context of a hunk in git"),
            ("editors of a file that are compared, the first ones", herd_index.MAX_EDITORS, proposal),
            (
                "titles with a shingle, above which it is no reason to compare them",
                herd_index.MAX_TITLES_OF_SHINGLE,
                proposal,
            ),
            ("findings of a pair, the most severe ones", conductor_ledger.MAX_FILES_OF_PAIR, proposal),
            ("findings of a project", conductor_ledger.MAX_FINDINGS, proposal),
            ("bytes of the paths in them", conductor_ledger.MAX_PATH_BYTES, "a message of the broker"),
            ("files in a message", message_texts.MAX_FILES, proposal),
            ("bytes of a compared path", ignored_files.MAX_PATH, proposal),
            (
                "seconds that a message waits for its agent",
                conductor_decisions.MESSAGE_EXPIRES,
                "as a nudge of the guardian",
            ),
            ("seconds between two reports of a project", f"{project_report.MIN_REPORT_INTERVAL:g}", proposal),
            ("`coherent` from", f"{coherence.COHERENT:g}", proposal),
            ("`strained` from, below it `conflicted`", f"{coherence.CONFLICTED:g}", "escalation of Hephaestus"),
        ),
    )


def ignored() -> str:
    """The files that are ignored by default."""
    return ", ".join(code(pattern) for pattern in sorted(IGNORED_FILES)) + "\n"
