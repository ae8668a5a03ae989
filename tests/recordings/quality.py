"""The quality of the rules on the recordings, as in docs/detection.md: `python -m tests.recordings.quality`.

With `--write` it writes the table into the page.
"""

import sys
from functools import cache
from pathlib import Path
from typing import Final

from monitor.replay.report import replay
from monitor.rule_set import ALL
from sandherd.contracts.replay import ReplayQuality
from tests.recordings import baselines
from tests.recordings.sessions import LABELS, names, plain_text

PAGE: Final = Path(__file__).parents[2] / "docs/detection.md"
BEGIN: Final = "<!-- quality:begin -->"
END: Final = "<!-- quality:end -->"


@cache
def measured() -> ReplayQuality:
    """The quality of all rules with their defaults."""
    lines = [line for name in names() for line in (plain_text(name) or b"").splitlines()]
    quality = replay(lines, ALL, LABELS.read_bytes()).quality
    assert quality is not None
    return quality


def table() -> str:
    """The tables of the page."""
    quality = measured()
    rows = [
        f"| `{rule.rule}` | {rule.sessions} | {rule.found} | {rule.false_alarms} | {max(rule.delay_turns, default=0)} |"
        for rule in quality.rules
        if rule.sessions
    ]
    head = ["| rule | labelled sessions | found | findings in healthy sessions | latest, in turns |", "|-|-|-|-|-|"]
    others = [_baseline(name) for name in baselines.DETECTORS]
    expected, right = sum(rule.sessions for rule in quality.rules), sum(rule.found for rule in quality.rules)
    ours = _row("Sandherd's rules", (right, expected), (quality.false_alarms, quality.healthy))
    compared = ["| | recall | false alarms per healthy session |", "|-|-|-|", ours, *others]
    return "\n".join([*head, *rows, "", *compared])


def _baseline(name: str) -> str:
    figures = baselines.figures_of(name)
    recall = sum(figures.found.values()), sum(figures.at_fault.values())
    return _row(f"conditions of {name}", recall, (len(figures.alarms), figures.healthy))


def _row(name: str, recall: tuple[int, int], alarms: tuple[int, int]) -> str:
    shares = recall[0] / recall[1], alarms[0] / alarms[1]
    return f"| {name} | {recall[0]}/{recall[1]} = {shares[0]:.2f} | {alarms[0]}/{alarms[1]} = {shares[1]:.3f} |"


def page_with(text: str, page: str) -> str:
    """The page with this text between its marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page_with(table(), PAGE.read_text()))
    else:
        print(table())
