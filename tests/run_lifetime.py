"""The lifetime of a test run: everything that it creates is in one temporary directory, and ends with it.

The process that controls the run makes the directory, and names it in `TMPDIR`, so that every process that is started
inherits it. A separate process, the reaper (`tests/run_reaper.py`), ends and removes what is left, however the
controller ends. SIGINT and SIGTERM to the controller stop the run without waiting for its tests.

The directory is in memory if root runs the tests on a machine with enough of it. On a disk, thousands of tests that
create and delete hundreds of small files each use much processor time: before ext4 creates a file, it examines every
inode that was deleted in the last minute, and servers wait for the disk.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Final

import pytest

MARK: Final = "SANDHERD_TEST_RUN"
"""The environment variable with the name of the run's directory, which no other run has."""
_REAPER: Final = Path(__file__).with_name("run_reaper.py")
_ENDING: Final = 300
"""Seconds within which the reaper must be done. On a busy machine it took 60 to remove the files of 8,000 tests."""
_ENOUGH: Final = 8 << 30
"""A run uses half of the available memory for its files if at least this many bytes are available; it needs 1 GiB."""


class Lifetime:
    """The directory and the reaper of a run, for the process that controls it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="st-"))  # short: paths of sockets below it are limited
        _use_memory(self.folder)
        self.folder.chmod(0o1777)  # as `/tmp`: some of what is started is another user
        os.environ[MARK] = self.folder.name
        os.environ["TMPDIR"] = str(self.folder)
        tempfile.tempdir = None
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_REAPER), self.folder.name, str(self.folder), str(os.getpid())],
            env={"PATH": os.environ["PATH"]},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        assert self._reaper.stdout is not None
        self._reaper.stdout.readline()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupt)

    def _interrupt(self, number: int, _frame: FrameType | None) -> None:
        """Stop the run; a second signal changes nothing."""
        self._command("s")
        if number == signal.SIGTERM:
            pytest.exit("terminated by SIGTERM", returncode=128 + number)
        raise KeyboardInterrupt

    def end(self) -> list[str]:
        """End and remove what is left. Returns the command lines of the processes that were still running."""
        self._command("e")
        left, _ = self._reaper.communicate(timeout=_ENDING)
        return left.splitlines()

    def _command(self, word: str) -> None:
        assert self._reaper.stdin is not None
        try:
            self._reaper.stdin.write(word)
            self._reaper.stdin.flush()
        except (OSError, ValueError):  # it was requested before, and is in progress
            return


def _use_memory(folder: Path) -> None:
    """Mount a file system in memory on the directory; without permission or memory its files are on the disk.

    The file system has the run's mark as its name: the reaper recognises by it a sandbox with a directory of the run.
    """
    if (free := _available()) >= _ENOUGH and os.geteuid() == 0 and (mount := shutil.which("mount")):
        options = f"mode=1777,size={free // 2}"
        subprocess.run([mount, "-t", "tmpfs", "-o", options, folder.name, folder], check=False, capture_output=True)


def _available() -> int:
    """Bytes of memory that programs may use; 0 if the kernel does not show it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), 0)


def begin(config: pytest.Config) -> Lifetime | None:
    """Begin a run. Returns None in a process that belongs to a run, and where no tests are run."""
    if MARK in os.environ or config.option.collectonly or not hasattr(os, "pidfd_open"):
        return None
    lifetime = Lifetime()
    if config.option.basetemp is None:
        config.option.basetemp = str(lifetime.folder / "p")
    return lifetime
