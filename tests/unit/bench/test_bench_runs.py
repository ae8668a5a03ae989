"""The bench as a program, with small groups and one real one: its screen, its stored results, and its end."""

import asyncio
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.bench.__main__ import main
from tests.bench.figures import Sample, summarize
from tests.bench.options import ROOT
from tests.bench.results import GroupResult, store
from tests.bench.tables import WIDTH
from tests.patience import PATIENCE
from tests.unit.bench.small_groups import GROUPS

SMALL = "tests.unit.bench.small_groups"
REAL = "tests.bench"
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
STYLE = re.compile(r"\x1b\[[0-9;]+m")


@dataclass(frozen=True)
class Ended:
    """How a run of the bench ended, and what it wrote to standard output and error."""

    status: int
    screen: str

    def check(self) -> None:
        """No log line, and no line that is too wide."""
        assert "log line" not in self.screen
        assert "another program" not in self.screen
        lines = re.split(r"[\r\n]+", CONTROL.sub("", self.screen))
        assert [line for line in lines if len(line) > WIDTH] == []


class Bench:
    """The bench, with its results in a directory of the test's own."""

    def __init__(self, home: Path) -> None:
        self.result, self.log = home / "bench.json", home / "bench.log"
        self.report = home / "endless"
        self.temporary = home / "tmp"
        self.temporary.mkdir()

    @property
    def groups(self) -> dict[str, Any]:
        """The stored groups."""
        groups: dict[str, Any] = json.loads(self.result.read_text())["groups"] if self.result.exists() else {}
        return groups

    def start(self, module: str, *options: str, output: int, **environment: str) -> "subprocess.Popen[bytes]":
        """Start it with this output, which is closed here, and a temporary directory of its own."""
        usual = {"TERM": "xterm-256color", "COLUMNS": "80", "TMPDIR": str(self.temporary), "ENDLESS": str(self.report)}
        inherited = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR"}}
        try:
            return subprocess.Popen(
                # A run in the background ignores Ctrl-C, and what it starts would, too.
                ["env", "--default-signal=INT", sys.executable, "-m", module, "--result", str(self.result), *options],
                cwd=ROOT, env=inherited | usual | environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        finally:
            os.close(output)

    async def run(self, module: str, *options: str, **environment: str) -> Ended:
        """Run it with its output in a pipe."""
        ours, theirs = os.pipe()
        return await ended(self.start(module, *options, output=theirs, **environment), ours)

    async def run_on_terminal(self, module: str, *options: str, **environment: str) -> Ended:
        """Run it on a pseudo-terminal of 80 columns."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        return await ended(self.start(module, *options, output=theirs, **environment), ours)


async def ended(process: "subprocess.Popen[bytes]", screen: int) -> Ended:
    """Wait for the end of the bench. `screen` is what it writes to, and closed here."""

    def wait() -> Ended:
        found = b""
        with suppress(OSError):  # a terminal that is no longer open anywhere
            while data := os.read(screen, 65536):
                found += data
        return Ended(process.wait(), found.decode())

    try:
        async with asyncio.timeout(PATIENCE):
            return await asyncio.to_thread(wait)
    finally:
        os.close(screen)


def is_running(pid: int) -> bool:
    """Whether there is such a process; not one that only its parent has not noticed yet."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_real_group_in_a_pipe_prints_plain_lines(bench: Bench) -> None:
    """The result has every sample, the units, the commit and the machine."""
    found = await bench.run(REAL, "--only", "scheduling")
    found.check()
    assert found.status == 0, found.screen
    assert "\x1b" not in found.screen
    assert "\r" not in found.screen
    group = bench.groups["scheduling"]
    assert group["machine"].keys() == {"cores", "memory_gib", "machine", "python", "nats_server", "postgres"}
    assert group["runs"] == 3
    figure = group["figures"]["scheduling.decision"]
    assert (figure["unit"], figure["better"], len(figure["samples"])) == ("µs", "lower", 3)
    assert figure["parts"]["value"]["min"] <= figure["parts"]["value"]["median"] <= figure["parts"]["value"]["max"]


async def test_logging_group_keeps_the_terminal_line(bench: Bench) -> None:
    """The terminal has a live line, and the log lines are in the log."""
    found = await bench.run_on_terminal(SMALL, "--only", "loud")
    found.check()
    assert found.status == 0, found.screen
    assert re.search(r"loud  starting  \d+ s", found.screen)
    assert "loud.rate" in found.screen
    assert STYLE.search(found.screen)
    log = bench.log.read_text()
    assert all(line in log for line in ("line of a service", "line of a library", "line of another program"))


async def test_real_group_on_a_terminal_prints_a_live_line(bench: Bench) -> None:
    """The live line names the group, the figure and the run; with NO_COLOR nothing is coloured or bold."""
    found = await bench.run_on_terminal(REAL, "--only", "scheduling", NO_COLOR="1")
    found.check()
    assert found.status == 0, found.screen
    assert "scheduling  scheduling.decision  run 1 of 3" in found.screen
    assert not STYLE.search(found.screen)


async def test_a_failing_group_stops_no_other(bench: Bench) -> None:
    """Its reason and the log are shown, the others are stored with earlier groups, and the status is 1."""
    found = await bench.run(SMALL, "--only", "failing,loud,lacking")
    found.check()
    assert found.status == 1
    text = " ".join(found.screen.split())
    assert "failing: failed: ConnectionRefusedError: no broker at nats://localhost:1" in text
    assert "lacking: failed: lacking.figure has 1 of at least 3 runs" in text
    assert bench.log.name in text
    assert bench.groups.keys() == {"loud"}
    assert "ConnectionRefusedError" in bench.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_interrupted_run_leaves_only_the_finished_groups(bench: Bench, number: signal.Signals) -> None:
    """Neither a process, also one in a session of its own, nor a temporary file is left."""
    ours, theirs = os.pipe()
    process = bench.start(SMALL, "--only", "loud,endless", output=theirs)
    ending = asyncio.create_task(ended(process, ours))
    async with asyncio.timeout(PATIENCE):
        while not bench.report.exists():
            assert not ending.done(), ending.result()
            await asyncio.sleep(0.05)
    *pids, file = bench.report.read_text().split()
    process.send_signal(number)
    found = await ending
    found.check()
    assert found.status == 128 + number
    assert number.name in found.screen
    assert bench.groups.keys() == {"loud"}
    assert [pid for pid in pids if is_running(int(pid))] == []
    assert not Path(file).exists()
    assert list(bench.temporary.iterdir()) == []


def test_stored_results_are_compared_without_measuring(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """The status is 0, and 3 if a figure is worse by more than the permitted percentage."""
    old = bench.result.with_name("old.json")
    for path, number in ((old, 2000.0), (bench.result, 1000.0)):
        samples = [Sample({"value": number + run}, {"value": 500.0}) for run in range(3)]
        found = summarize(GROUPS[0].figures[0], samples)
        entry = GroupResult(
            group="loud", measured_at=datetime.now(UTC), commit=None, machine={}, seconds=1, runs=3, figures=[found]
        )
        store(path, entry)
    options = ["--show", "--result", str(bench.result), "--against", str(old)]
    status = [main([*options, *more], GROUPS) for more in ([], ["--fail-if-worse", "10"], ["--fail-if-worse", "60"])]
    assert status == [0, 3, 0]
    screen = capsys.readouterr().out
    assert screen.count("worse by more than 10 %: loud.rate value") == 1
    assert len(re.findall(r"2001 +1001 +-50\.0 % +worse", screen)) == 3


@pytest.mark.parametrize(
    ("options", "expected_text"),
    [
        (("--only", "nosuch"), "no group nosuch; the groups are: loud, failing, lacking, endless"),
        (("--against", "nosuch.json"), "nosuch.json can't be read"),
        (("--runs", "2"), "at least 3"),
        (("--fail-if-worse", "5"), "needs --against"),
        (("--show",), "measure them with `make bench`"),
    ],
)
def test_invalid_option_is_reported_before_any_measurement(
    bench: Bench, options: tuple[str, ...], expected_text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The status is 2."""
    try:
        status: object = main(["--result", str(bench.result), *options], GROUPS)
    except SystemExit as ending:  # of argparse
        status = ending.code
    assert status == 2
    assert expected_text in " ".join(capsys.readouterr().err.split())
    assert not bench.log.exists()
