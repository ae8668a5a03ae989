"""Commands that `make test` runs beside the checks (`tests/background_job.py`)."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.patience import PATIENCE
from tests.polling import eventually

PROGRAM = (sys.executable, "-I", "-S", "tests/background_job.py")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def controller() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits; it has ended after the test."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def beside(controller: int, script: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*PROGRAM, str(controller), "/bin/sh", "-c", script], cwd=ROOT)


def running(pid: int) -> bool:
    """Whether the process exists, and is not only waiting to be reaped."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
async def test_job_ends_with_its_controller(
    controller: subprocess.Popen[bytes], tmp_path: Path, sent: signal.Signals
) -> None:
    """All processes of the command end, also one that ignores SIGTERM, when the controller was killed."""
    pids = tmp_path / "pids"
    job = beside(controller.pid, f"(trap '' TERM; sleep 600) & echo $! $$ >{pids}.part; mv {pids}.part {pids}; wait")
    await eventually(pids.exists)
    started = [int(word) for word in pids.read_text().split()]
    controller.send_signal(sent)
    controller.wait(PATIENCE)
    job.wait(PATIENCE)
    await eventually(lambda: not any(map(running, started)))


def test_exit_status_is_that_of_the_command(controller: subprocess.Popen[bytes]) -> None:
    """A command that ends first ends nothing else."""
    assert beside(controller.pid, "exit 3").wait(PATIENCE) == 3
    assert controller.poll() is None


def test_command_is_not_started_without_its_controller(tmp_path: Path) -> None:
    """A controller may have ended before."""
    ended = subprocess.Popen(["true"])
    ended.wait(PATIENCE)
    assert beside(ended.pid, f"touch {tmp_path / 'started'}").wait(PATIENCE) == 0
    assert list(tmp_path.iterdir()) == []
