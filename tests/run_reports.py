"""What a run leaves in a folder: each failure as soon as it happens, and the slowest tests at the end."""

from collections import Counter
from pathlib import Path
from typing import Final

import pytest

_MOST: Final = 50


class RunReports:
    """A plugin that writes `failed.txt` and `slowest.txt`; a long run need not end before a failure can be read."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._failed, self._slowest = folder / "failed.txt", folder / "slowest.txt"
        self._seconds: Counter[str] = Counter()
        self._failed.write_text("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the seconds of a test, with setup and teardown; write down a failure."""
        self._seconds[report.nodeid] += report.duration  # type: ignore[assignment]  # a sum of seconds, not a count
        if report.failed:
            with self._failed.open("a") as file:
                file.write(f"{report.nodeid} ({report.when})\n{report.longreprtext}\n{report.capstderr}\n\n")

    def pytest_sessionfinish(self) -> None:
        """Write a line for each of the slowest tests: seconds, then its name."""
        slowest = self._seconds.most_common(_MOST)
        self._slowest.write_text("".join(f"{spent:8.2f} {test}\n" for test, spent in slowest))
