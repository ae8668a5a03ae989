"""Processes of this host, told apart safely: a process id alone is used again, with its start time it is not."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final, TypedDict

_PROC: Final = Path("/proc")
_ENDED: Final = frozenset({"Z", "X", None})
"""States of a thread that runs no more."""
_PID_IN_SANDBOX: Final = 2
"""The worker in its own pid namespace: bubblewrap's reaper is 1 and starts it first."""


class Stat(TypedDict):
    """The fields of `/proc/<pid>/stat` that matter here."""

    pid: int
    parent: int
    session: int
    started: int


def read_stat(text: str) -> Stat:
    """Read a line of `/proc/<pid>/stat` (proc(5)). Raises `ValueError`. The name in it may hold spaces and brackets."""
    before, bracket, after = text.rpartition(")")
    fields = after.split()
    if not bracket or len(fields) < 20:  # the start time is the 22nd field, the 20th after the name
        raise ValueError("not a line of /proc/<pid>/stat")
    return Stat(
        pid=int(before.partition(" ")[0]),
        parent=int(fields[1]),
        session=int(fields[3]),
        started=int(fields[19]),
    )


@cache
def boot() -> str:
    """This boot of the host: a process id of an earlier one means nothing."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True)
class ProcessId:
    """One process, now and for ever."""

    boot: str
    pid: int
    started: int
    parent: int = field(default=0, compare=False)
    session: int = field(default=0, compare=False)

    def alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        if self.boot != boot():
            return False
        stat = stat_of(self.pid)
        return stat is not None and stat["started"] == self.started and not is_zombie(self.pid)

    def open(self) -> int | None:
        """A pidfd for it, or None if it is gone. The caller closes it."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            return None
        # Looked at after opening: from here on the number can't become another process's.
        if self.alive():
            return descriptor
        os.close(descriptor)
        return None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it is still there."""
        descriptor = self.open()
        if descriptor is None:
            return
        try:
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def find(pid: int) -> ProcessId | None:
    """The process with this number now."""
    stat = stat_of(pid)
    return ProcessId(boot=boot(), **stat) if stat else None


def stat_of(pid: int) -> Stat | None:
    """What the kernel says of a process, or None if there is none."""
    try:
        return read_stat((_PROC / str(pid) / "stat").read_text())
    except (OSError, ValueError):
        return None


def children(pid: int) -> list[int]:
    """The direct children of a process, whichever of its threads has started them."""
    return [child for thread in _threads(pid) for child in _children_of_thread(pid, thread)]


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(_PROC / str(pid) / "task")  # noqa: PTH208  # names are all that is wanted
    except OSError:
        return []


def _children_of_thread(pid: int, thread: str) -> list[int]:
    try:
        return [int(child) for child in (_PROC / str(pid) / "task" / thread / "children").read_text().split()]
    except OSError:
        return []


def descendants(pid: int) -> set[int]:
    """Every process below this one that has not changed its parent."""
    found: set[int] = set()
    waiting = children(pid)
    while waiting:
        child = waiting.pop()
        if child not in found:
            found.add(child)
            waiting += children(child)
    return found


def in_session(session: int) -> set[int]:
    """Every process of a session."""
    return {stat["pid"] for stat in map(stat_of, pids()) if stat and stat["session"] == session}


def marked(variable: str, value: str) -> set[int]:
    """Every process of ours that was started with this environment variable, wherever it has gone since."""
    wanted = f"{variable}={value}".encode()
    return {pid for pid in pids() if wanted in _environment(pid)}


def _environment(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def pids() -> Iterator[int]:
    """Every process id of this moment."""
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal())


def worker_below(init: int) -> ProcessId | None:
    """The worker in the pid namespace whose first process is `init`, once it is there."""
    for pid in children(init):
        with suppress(OSError):
            status = (_PROC / str(pid) / "status").read_text()
            line = next((line for line in status.splitlines() if line.startswith("NSpid:")), "")
            if line.split()[-1:] == [str(_PID_IN_SANDBOX)]:
                return find(pid)
    return None


async def gone(process: ProcessId, timeout: float | None = None) -> bool:
    """Wait until the process has ended, without polling. Returns whether it has within `timeout` seconds."""
    descriptor = process.open()
    if descriptor is None:
        return True
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, _settle, ended)
    try:
        async with asyncio.timeout(timeout):
            await ended
    except TimeoutError:
        return False
    else:
        return True
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _settle(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def reap(pid: int) -> bool:
    """Take the exit status of a child, if it has ended. Returns whether there is no such child any more."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True  # adopted: it was never our child


def is_zombie(pid: int) -> bool:
    """Whether all its threads have ended, so that only its number is left, or not even that.

    The kernel shows a process whose first thread has ended as a zombie, while other threads of it run on.
    """
    return _state(pid) in _ENDED and len(_threads(pid)) <= 1


def is_stopped(pid: int) -> bool:
    """Whether it stands still since a signal (SIGSTOP), or is gone."""
    return all(_state(pid, thread) in {"T", *_ENDED} for thread in _threads(pid))


def _state(pid: int, thread: str = "") -> str | None:
    """The state of a process or of one of its threads (proc(5)), or None if there is none."""
    place = _PROC / str(pid) / "task" / thread if thread else _PROC / str(pid)
    try:
        return (place / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None
