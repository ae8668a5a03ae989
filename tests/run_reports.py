"""Writes the reports of a run to a folder: each failure as it happens, and at the end the most expensive tests."""

import os
from collections import Counter
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests.run_lifetime import MARK

_MOST: Final = 50
_CPU: Final = "cpu_seconds"
_BEGAN: Final = pytest.StashKey[float]()


SERVERS: Final[set[int]] = set()
"""Processes that work for tests but are waited for only at the end. Their CPU time during a test is charged to it."""


_ACCOUNTS: Final = Path("/sys/fs/cgroup/cpuacct")
"""Where Linux counts processor time by control group, separately from all other resources (cgroups v1)."""


def _own_account() -> Path | None:
    """Create a control group for this process and all that it starts. None without permission, or without cgroups v1.

    A group of cgroups v2 would also affect the groups of sandboxes, so none is created there.
    """
    # The reaper of the run finds the group by this name.
    group = _ACCOUNTS / f"{os.environ.get(MARK, 'sandherd-tests')}-{os.getpid()}"
    try:
        if _ACCOUNTS.samefile(_ACCOUNTS.parent / "cpu"):
            return None
        group.mkdir()
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        return None
    return group


def _cpu(account: Path | None) -> float:
    """Processor seconds of the group; without one, of this process, of children it has waited for, and of `SERVERS`."""
    if account is not None:
        return int((account / "cpuacct.usage").read_text()) / 1e9
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return own + sum(_cpu_of(pid) for pid in SERVERS)


def _cpu_of(pid: int) -> float:
    """Processor seconds of a living process, and of the children that it has waited for (proc(5), stat)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # the run was interrupted, and its reaper is at work
        return 0.0
    return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")


class CpuAccounting:
    """A plugin of each process that runs tests: the processor seconds of a test are a property of its last report."""

    def __init__(self) -> None:
        self._account: Path | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Create the control group, except in a process that lets other processes run the tests."""
        if session.config.getoption("dist", "no") == "no":
            self._account = _own_account()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Remember the processor seconds used before the test."""
        item.stash[_BEGAN] = _cpu(self._account)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the seconds that the test used to the report of its teardown."""
        report = yield
        if report.when == "teardown":
            report.user_properties.append((_CPU, _cpu(self._account) - item.stash[_BEGAN]))
        return report

    def pytest_unconfigure(self) -> None:
        """Move back to the group of all processes, and remove the own group unless it still has processes."""
        if self._account is not None:
            for pid in (self._account / "cgroup.procs").read_text().split():
                with suppress(OSError):
                    (_ACCOUNTS / "cgroup.procs").write_text(pid)
            with suppress(OSError):
                self._account.rmdir()


class RunReports:
    """A plugin that writes `failed.txt` (readable before the end of the run), `slowest.txt` and `cpu.txt`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._seconds: Counter[str] = Counter()
        self._cpu: Counter[str] = Counter()
        (folder / "failed.txt").write_text("")
        (folder / "cpu_tests.txt").write_text("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up the seconds of a test, with setup and teardown; write down a failure."""
        self._seconds[report.nodeid] += report.duration  # type: ignore[assignment]  # a sum of seconds, not a count
        for name, value in report.user_properties:
            if name == _CPU and isinstance(value, float) and report.when == "teardown":
                self._cpu[report.nodeid] += value  # type: ignore[assignment]
                with (self._folder / "cpu_tests.txt").open("a") as file:
                    file.write(f"{value:.3f} {self._seconds[report.nodeid]:.2f} {report.nodeid}\n")
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
