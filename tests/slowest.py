"""The slowest tests of a run, for whoever makes the run faster."""

from collections import Counter
from pathlib import Path
from typing import Final

import pytest

_MOST: Final = 50


def write_slowest(place: Path, reporter: pytest.TerminalReporter) -> None:
    """Write a line for each of the slowest tests: seconds with setup and teardown, then its name."""
    seconds: Counter[str] = Counter()
    for reports in reporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid] += report.duration  # type: ignore[assignment]  # a sum of seconds, not a count
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("".join(f"{spent:8.2f} {test}\n" for test, spent in seconds.most_common(_MOST)))
