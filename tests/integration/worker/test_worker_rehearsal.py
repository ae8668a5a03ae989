"""The rehearsal of a worker's start: it succeeds, and leaves nothing behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import json, os, signal, threading
from sandherd_worker.main import preload
preload()
from sandherd_worker.rehearsal import rehearse
handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)}
before = sorted(os.listdir("/proc/self/fd"))
found = [rehearse(), rehearse()]
same = all(signal.getsignal(number) == handler for number, handler in handlers.items())
print(json.dumps([found, same, threading.active_count(), sorted(os.listdir("/proc/self/fd")) == before]))
"""


def _run(folder: Path, program: str = _PROGRAM) -> "subprocess.CompletedProcess[str]":
    environment = {name: os.environ.get(name, "") for name in ("PATH", "PYTHONPATH")} | {"TMPDIR": str(folder / "tmp")}
    (folder / "tmp").mkdir()
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )


def test_rehearsal_leaves_nothing_behind(tmp_path: Path) -> None:
    """A rehearsal succeeds, also repeatedly, without a file, thread, descriptor, signal handler or log line left."""
    done = _run(tmp_path)
    assert json.loads(done.stdout) == [[True, True], True, 1, True]
    assert done.stderr == ""
    assert list(tmp_path.rglob("*")) == [tmp_path / "tmp"]


def test_rehearsal_without_a_place_for_files_is_left_out(tmp_path: Path) -> None:
    """A rehearsal that is not possible, for lack of a place for files, is no failure."""
    done = _run(tmp_path, _PROGRAM.replace("found =", "import tempfile; tempfile.tempdir = '/nowhere'; found ="))
    assert json.loads(done.stdout)[0] == [False, False]
