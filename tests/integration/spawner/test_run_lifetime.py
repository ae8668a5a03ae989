"""A test run ends with its controller: no process and no file of it is left, however it ends."""

import asyncio
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.patience import PATIENCE
from tests.run_lifetime import MARK
from tests.run_reaper import _RESERVATIONS, Run, _groups_of, _mounts_from

ENDLESS = Path(__file__).with_name("endless.py")


async def interrupted(number: signal.Signals, report: Path, *options: str) -> tuple[int, Any]:
    """Run the test that never ends, and end its controller by a signal. Returns its status, and what was running."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", MARK))}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(ENDLESS)),
        # If this run is ended itself, its mark in another variable also ends that run.
        env=environment | {"OUTER_RUN": os.environ.get(MARK, ""), "ENDLESS": str(report), "TMPDIR": "/tmp"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        # A run in the background ignores Ctrl-C, and so would the processes that it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout
    async with asyncio.timeout(PATIENCE):
        output = asyncio.create_task(process.stdout.read())
        while not report.exists():
            assert process.returncode is None, (await output).decode()
            await asyncio.sleep(0.05)
        process.send_signal(number)
        await output
        return await process.wait(), json.loads(report.read_text())


@pytest.mark.parametrize(
    ("number", "options"),
    [
        (signal.SIGTERM, ("-n", "1")),
        (signal.SIGINT, ("-n", "1")),
        pytest.param(signal.SIGKILL, ("-n", "1"), marks=pytest.mark.long),
        pytest.param(signal.SIGINT, ("-n", "0"), marks=pytest.mark.long),
    ],
    ids=["SIGTERM", "SIGINT", "SIGKILL", "SIGINT-in-one-process"],
)
async def test_interrupted_run_leaves_nothing(number: signal.Signals, options: tuple[str, ...]) -> None:
    """An interrupted run leaves no process (none of an isolated sandbox either), directory, control group or uid."""
    with tempfile.TemporaryDirectory() as folder:
        status, found = await interrupted(number, Path(folder, "told"), *options)
    assert status != 0
    assert len(found["pids"]) > 5
    run = Run(found["mark"], Path("/tmp", found["mark"]), 0)
    async with asyncio.timeout(PATIENCE):  # the reaper of a killed controller is not waited for
        while run.folder.exists() or run.processes():
            await asyncio.sleep(0.05)
    assert not [pid for pid in found["pids"] if lives(pid)]
    assert not [group for parent in _groups_of("self") for group in parent.glob(found["group"])]
    reserved = _RESERVATIONS.glob("*") if os.access(_RESERVATIONS, os.R_OK) else ()
    assert not [entry for entry in reserved if found["mark"] in entry.read_text()]
    assert found["mark"] not in Path("/proc/self/mountinfo").read_text()


def lives(pid: int) -> bool:
    """Whether a process runs; a zombie does not run."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_processes_of_other_runs_are_ignored() -> None:
    """Another run's process is ignored: its copy of the host's mounts names the directory only as a mount point."""
    copied = "36 35 98:0 / /tmp/st-1/disk rw shared:1 - ext4 /dev/loop1 rw"
    bound = "37 35 98:0 /tmp/st-1/home/sandboxes/sbx-1/state /sandbox/state rw - ext4 /dev/vda rw"
    memory = "37 35 0:40 /home/sandboxes/sbx-1/state /sandbox/state rw - tmpfs st-1 rw,size=9g"
    overlay = "38 35 0:41 / / rw - overlay overlay rw,upperdir=/dev/shm/st-1-x/data/diff"
    assert [_mounts_from(line, "st-1") for line in (copied, bound, memory, overlay)] == [False, True, True, True]
