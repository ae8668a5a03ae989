"""Forked workers: connections to them, and what they must not share with each other or take for their own."""

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sandherd import processes
from spawner.runtimes import fork_program, nsenter, nsenter_launch
from spawner.runtimes.fork_server import Handover
from tests.patience import PATIENCE


def test_connection_is_closed_if_its_coroutine_was_cancelled() -> None:
    """Before or after the thread has opened it; otherwise it stays open."""
    pairs = [socket.socketpair() for _ in range(3)]
    for number, (near, _) in enumerate(pairs):
        handover = Handover()
        if number == 0:
            handover.abandon()
        handover.add(near)
        if number == 1:
            handover.abandon()
    assert [near.fileno() < 0 for near, _ in pairs] == [True, True, False]
    for pair in pairs:
        for end in pair:
            end.close()


EQUAL_IDS = """
import ctypes, os, random, secrets, ssl, sys, tempfile, uuid
import uuid_utils.compat
from nacl.utils import random as sodium
from spawner.runtimes import fork_program
libc = ctypes.CDLL(None)
USER, PIDS = 0x10000000, 0x20000000
def drawn():
    names = tempfile._get_candidate_names()
    return [ssl.RAND_bytes(16).hex(), random.random(), secrets.token_hex(8), uuid.uuid4().hex, uuid.uuid1().hex,
            uuid_utils.compat.uuid7().hex, uuid_utils.compat.uuid4().hex, sodium(16).hex(), next(names)]
def first(run):  # as the first process of a new pid namespace
    if os.fork() == 0:
        assert libc.unshare(PIDS) == 0
        if os.fork() == 0:
            assert os.getpid() == 1
            run()
            sys.stdout.flush()
            os._exit(0)
        os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
    assert os.wait()[1] == 0
def worker():
    fork_program.renew_random_states()
    print(*drawn())
def server():
    drawn()
    first(worker)
    first(worker)
assert libc.unshare(USER) == 0
first(server)
"""


def test_forked_processes_draw_different_random_numbers() -> None:
    """Also if both have the process id of the fork server, whose libraries have already generated random numbers."""
    done = subprocess.run(
        [sys.executable, "-c", EQUAL_IDS], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    first, second = (line.split() for line in done.stdout.splitlines())
    assert len(first) == 9, done.stderr
    assert not {*first} & {*second}


def test_stub_whose_id_was_reused_is_not_entered(tmp_path: Path) -> None:
    """A folder with the same name in another sandbox is not taken for the one that was requested."""
    here = Path.cwd()
    inodes = [[(found := folder.stat()).st_dev, found.st_ino] for folder in (tmp_path, tmp_path.parent)]
    try:
        fork_program._enter_folder(str(tmp_path), inodes[0])
        with pytest.raises(OSError, match="another sandbox"):
            fork_program._enter_folder(str(tmp_path), inodes[1])
    finally:
        os.chdir(here)


def test_process_with_the_id_of_an_ended_entrant_is_not_ended() -> None:
    """A forked entrant leaves no zombie, so its id may be that of another process at once."""
    with subprocess.Popen(["sleep", "100"]) as other:
        found = processes.find(other.pid)
        assert found is not None
        visit = nsenter.NsenterCommand.__new__(nsenter.NsenterCommand)
        visit._process = nsenter_launch.ForkedEntrant(replace(found, started=found.started - 1))
        to_end = visit._next_to_kill(assume_stopped=False), visit._next_to_kill(assume_stopped=True)
        stopped = processes.is_stopped(other.pid)
        other.kill()
    assert to_end == ([], [])
    assert not stopped
