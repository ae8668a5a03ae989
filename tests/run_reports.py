"""What a run leaves in a folder: each failure as soon as it happens, and at the end which tests cost most."""

import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

_MOST: Final = 50
_CPU: Final = "cpu_seconds"
_BEGAN: Final = pytest.StashKey[float]()


SERVERS: Final[set[int]] = set()
"""Processes that work for tests and are waited for at the end only: what one uses during a test is the test's."""


def _cpu() -> float:
    """Processor seconds of this process, of those that it has started and waited for, and of `SERVERS`."""
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return own + sum(_cpu_of(pid) for pid in SERVERS)


def _cpu_of(pid: int) -> float:
    """Processor seconds of a living process, and of those that it has waited for (proc(5), stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")


class CpuAccounting:
    """A plugin of each process that runs tests: the processor seconds of a test, as a property of its last report."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Remember what was used before the test."""
        item.stash[_BEGAN] = _cpu()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the difference to the report of the teardown."""
        report = yield
        if report.when == "teardown":
            report.user_properties.append((_CPU, _cpu() - item.stash[_BEGAN]))
        return report


class RunReports:
    """A plugin that writes `failed.txt`, `slowest.txt` and `cpu.txt`; a failure can be read before the run's end."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._seconds: Counter[str] = Counter()
        self._cpu: Counter[str] = Counter()
        (folder / "failed.txt").write_text("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the seconds of a test, with setup and teardown; write down a failure."""
        self._seconds[report.nodeid] += report.duration  # type: ignore[assignment]  # a sum of seconds, not a count
        for name, value in report.user_properties:
            if name == _CPU and isinstance(value, float) and report.when == "teardown":
                self._cpu[report.nodeid] += value  # type: ignore[assignment]
        if report.failed:
            with (self._folder / "failed.txt").open("a") as file:
                file.write(f"{report.nodeid} ({report.when})\n{report.longreprtext}\n{report.capstderr}\n\n")

    def pytest_sessionfinish(self) -> None:
        """Write a line for each of the slowest tests, and processor seconds by file: seconds, then the name."""
        files: Counter[str] = Counter()
        for test, spent in self._cpu.items():
            files[test.partition("::")[0]] += spent
        for name, counted in (("slowest.txt", self._seconds), ("cpu.txt", files)):
            lines = (
                f"{spent:8.2f} {what}\n"
                for what, spent in counted.most_common(_MOST if counted is self._seconds else None)
            )
            (self._folder / name).write_text("".join(lines))
