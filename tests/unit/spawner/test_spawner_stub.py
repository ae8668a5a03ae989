"""The stub in a sandbox, which stands for a forked worker: it forwards signals, and ends with the worker's status."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from spawner.runtimes import shim
from tests.patience import PATIENCE

INSTEAD = ["/bin/sh", "-c", "exit 9"]
"""The worker as a program, in place of one that is forked."""


@contextmanager
def running_stub() -> Iterator[tuple[int, socket.socket]]:
    """A stub that has reported itself as ready: its process id, and the connection of the process that forks."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        actions = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), shim.CHANNEL)]
        stub = os.posix_spawn("/bin/sh", shim.stub(INSTEAD), {"PATH": os.environ["PATH"]}, file_actions=actions)
        theirs.close()
        ours.settimeout(PATIENCE)
        assert ours.recv(64) == b"ready\n"
        yield stub, ours


@contextmanager
def running_worker() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for a signal."""
    with subprocess.Popen(["/bin/sleep", str(PATIENCE)]) as worker:
        try:
            yield worker
        finally:
            worker.kill()


def status_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("early", [True, False], ids=["before the worker's id", "while the worker runs"])
def test_signal_is_forwarded_to_the_worker(early: bool) -> None:
    """A stop at any moment reaches the worker, and the stub ends with the worker's status, not by the signal."""
    with running_stub() as (stub, channel), running_worker() as worker:
        if early:
            os.kill(stub, signal.SIGTERM)
        channel.sendall(f"started {worker.pid}\n".encode())
        if not early:
            os.kill(stub, signal.SIGTERM)
        assert worker.wait(PATIENCE) == -signal.SIGTERM
        channel.sendall(b"ended 7\n")
        assert status_of(stub) == 7


@pytest.mark.parametrize("stopped", [True, False])
def test_worker_is_a_program_if_none_was_forked(stopped: bool) -> None:
    """If the fork fails, the stub becomes the worker, unless it was stopped before: then the worker never runs."""
    with running_stub() as (stub, channel):
        if stopped:
            os.kill(stub, signal.SIGTERM)
        with suppress(BrokenPipeError):
            channel.sendall(b"failed\n")
        assert status_of(stub) == (128 + signal.SIGTERM if stopped else 9)
