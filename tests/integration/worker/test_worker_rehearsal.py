"""The rehearsal of a worker's start: it succeeds, ends when the worker is claimed, and leaves nothing behind."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sandherd_worker.rehearsal_broker import serving
from tests.patience import PATIENCE

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

_CUT = """
import asyncio, json, os, tempfile, threading
from sandherd_worker.main import preload
preload()
from sandherd_worker.rehearsal import rehearse
run_once, ends, steps = asyncio.BaseEventLoop._run_once, os.pipe(), 0
def cut(loop):
    global steps
    steps += 1
    if steps == last:
        os.write(ends[1], b"x")
    run_once(loop)
asyncio.BaseEventLoop._run_once = cut
before, done = sorted(os.listdir("/proc/self/fd")), []
for last in range(1, 1000):
    steps = 0
    done.append(rehearse(ends[0]))
    left = [sorted(os.listdir("/proc/self/fd")) == before, threading.active_count(), os.listdir(tempfile.gettempdir())]
    assert left == [True, 1, []], (last, left)
    if done[-1]:
        break
    os.read(ends[0], 1)
print(json.dumps(done))
"""
_STUCK = """
import asyncio, contextlib, os, signal
from sandherd_worker import rehearsal
from sandherd_worker.warm_start import wait_for_identity
@contextlib.asynccontextmanager
async def serving(client):
    def silent(reader, writer):
        END
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
rehearsal.serving, rehearsal._TIMEOUT_SECONDS = serving, 1e9
with open("environment.json", "w") as file:
    file.write('{"NAME": "value"}')
print(wait_for_identity({"SANDHERD_STATE_DIR": "."}))
"""


def _run(folder: Path, program: str = _PROGRAM) -> "subprocess.CompletedProcess[str]":
    environment = {name: os.environ.get(name, "") for name in ("PATH", "PYTHONPATH")} | {"TMPDIR": str(folder / "tmp")}
    (folder / "tmp").mkdir()
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
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


def test_rehearsal_that_is_ended_at_any_step_leaves_nothing_behind(tmp_path: Path) -> None:
    """Whenever the worker is claimed: no file, thread or descriptor is left, and nothing is logged."""
    done = _run(tmp_path, _CUT)
    *ended, last = json.loads(done.stdout)
    assert len(ended) > 20
    assert not any(ended)
    assert last
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("end", "found"),
    [
        ("os.close(os.open('begin', os.O_WRONLY)) or open('begin', 'wb').write(b'x')", "value"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "None"),
    ],
    ids=["claimed", "to be ended"],
)
def test_stuck_rehearsal_does_not_delay_the_worker(tmp_path: Path, end: str, found: str) -> None:
    """It ends at once when the worker is claimed, or is to end; opening the pipe is no claim."""
    assert found in _run(tmp_path, _STUCK.replace("END", end)).stdout


async def _connect(url: str, name: str) -> bytes:
    """What the broker replies to a client of this name, after its first line."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        await reader.readline()
        writer.write(b'CONNECT {"name":"%s"}\r\nPING\r\n' % name.encode())
        return await reader.readline()
    finally:
        writer.close()


async def test_broker_of_the_rehearsal_serves_its_worker_only() -> None:
    """A process of another sandbox, where sandboxes share their host's network, would use the worker's memory."""
    async with serving("sbx-1f") as url:
        assert await _connect(url, "worker sbx-other") == b""
        assert await _connect(url, "worker sbx-1f") == b"PONG\r\n"
        with pytest.raises(ConnectionRefusedError):
            await _connect(url, "worker sbx-1f")
