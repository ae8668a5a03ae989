"""Processes: a reused pid is another process, and no process is hidden by its name or its first thread."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from sandherd.process_signals import ended, wait_ended
from sandherd.processes import below, descendants, environment_of, find, in_session, living, marked

_NAMED = """
import ctypes, sys
ctypes.CDLL(None).prctl(15, b"\\xff) Z 1 (\\n", 0, 0, 0)
print("begun", flush=True)
sys.stdin.read()
"""
"""Names itself with bytes that are not UTF-8, a parenthesis and a line break: 15 is PR_SET_NAME."""
_THREADED = """
import ctypes, sys, threading
threading.Thread(target=sys.stdin.read).start()
print("begun", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""
"""Its first thread ends, another one runs on."""


@contextmanager
def _child(program: str) -> Iterator[int]:
    command = [sys.executable, "-c", program]
    pipe = subprocess.PIPE
    environment = {**os.environ, "PROCESSES_TEST": "mine"}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, start_new_session=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            yield child.pid
        finally:
            child.kill()


@pytest.mark.parametrize("program", [_NAMED, _THREADED], ids=["name", "first thread"])
def test_disguised_process_is_found_in_every_way(program: str) -> None:
    """The process is alive, a descendant, in its session, in the table, and has its environment."""
    ways: list[Callable[[int], set[int]]] = [
        lambda _pid: descendants(os.getpid()),
        lambda _pid: below({os.getpid()}, living()),
        in_session,
        lambda _pid: marked("PROCESSES_TEST", "mine"),
    ]
    with _child(program) as pid:
        process = find(pid)
        assert process is not None
        assert process.alive()
        assert [pid in way(pid) for way in ways] == [True] * 4
        assert b"PROCESSES_TEST=mine" in environment_of(pid)


async def test_process_end_is_waited_for_without_its_parent() -> None:
    """A signal ends this very process; afterwards it is not alive, also as long as it is not reaped."""
    with _child(_NAMED) as pid:
        process = find(pid)
        assert process is not None
        assert not await wait_ended(process, timeout=0)
        process.signal(signal.SIGKILL)
        assert await wait_ended(process)
        await ended(pid)
        assert not process.alive()
        assert pid not in living()
        assert await wait_ended(process, timeout=0)


def test_other_process_with_the_same_pid_is_never_signalled() -> None:
    """A process with another start time or of another boot is not signalled."""
    with _child(_NAMED) as pid:
        process = find(pid)
        assert process is not None
        for other in (replace(process, started=process.started + 1), replace(process, boot="another")):
            assert not other.alive()
            assert other.open() is None
            assert other.mark != process.mark
            other.signal(signal.SIGKILL)
        assert process.alive()
