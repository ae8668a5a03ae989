"""Processes of this host. They are identified by pid and start time, because a pid alone can be reused."""

import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final, TypedDict

_PROC: Final = Path("/proc")
_ENDED: Final = frozenset({"Z", "X", None})
"""States of a thread that has ended."""


class ProcessStat(TypedDict):
    """The fields of `/proc/<pid>/stat` that are used here."""

    pid: int
    parent: int
    session: int
    started: int


def read_stat(text: str) -> ProcessStat:
    """Parse a line of `/proc/<pid>/stat` (proc(5)). Raises `ValueError`. The name may have spaces and parentheses."""
    before, bracket, after = text.rpartition(")")
    fields = after.split()
    if not bracket or len(fields) < 20:  # the start time is the 22nd field, the 20th after the name
        raise ValueError("not a line of /proc/<pid>/stat")
    return ProcessStat(
        pid=int(before.partition(" ")[0]),
        parent=int(fields[1]),
        session=int(fields[3]),
        started=int(fields[19]),
    )


@cache
def boot() -> str:
    """The id of this boot of the host. Pids of an earlier boot are invalid."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True)
class ProcessId:
    """The unique identity of one process."""

    boot: str
    pid: int
    started: int
    parent: int = field(default=0, compare=False)
    session: int = field(default=0, compare=False)

    @property
    def mark(self) -> str:
        """A text that distinguishes this process from all others with the same pid."""
        return f"{self.boot}/{self.started}"

    def alive(self) -> bool:
        """Whether this process still runs; a zombie does not."""
        if self.boot != boot():
            return False
        stat = stat_of(self.pid)
        return stat is not None and stat["started"] == self.started and not is_zombie(self.pid)

    def open(self) -> int | None:
        """A pidfd for it, or None if it has ended. The caller closes it."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            return None
        # Checked after opening: from then on the pidfd can't refer to another process.
        if self.alive():
            return descriptor
        os.close(descriptor)
        return None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it still runs."""
        descriptor = self.open()
        if descriptor is None:
            return
        try:
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def find(pid: int) -> ProcessId | None:
    """The process that has this pid now, or None."""
    stat = stat_of(pid)
    return ProcessId(boot=boot(), **stat) if stat else None


def identify(stat: str) -> ProcessId:
    """The process whose `/proc/self/stat` has this line. Raises `ValueError`."""
    return ProcessId(boot=boot(), **read_stat(stat))


def stat_of(pid: int) -> ProcessStat | None:
    """The stat fields of a process, or None if it does not exist."""
    try:
        return read_stat(_stat_text(pid))
    except (OSError, ValueError):
        return None


def children(pid: int) -> list[int]:
    """The direct children of a process, started by any of its threads."""
    return [child for thread in _threads(pid) for child in _children_of_thread(pid, thread)]


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"{_PROC}/{pid}/task")  # noqa: PTH208  # names are all that is wanted
    except OSError:
        return []


def _children_of_thread(pid: int, thread: str) -> list[int]:
    try:
        return [int(child) for child in _content(f"{pid}/task/{thread}/children").split()]
    except OSError:
        return []


def descendants(pid: int) -> set[int]:
    """The pids of all descendants of a process. Those that were reparented to another process are missing."""
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


def living() -> dict[int, ProcessStat]:
    """Every process that has not ended, by pid."""
    return {pid: stat for pid in pids() if (stat := stat_of(pid)) and not is_zombie(pid)}


def below(roots: set[int], table: Mapping[int, ProcessStat]) -> set[int]:
    """The descendants of `roots` in a table of processes, without the roots.

    Unlike `descendants`, it works in sandboxes whose kernel has no `/proc/<pid>/task/<tid>/children`
    (`CONFIG_PROC_CHILDREN`).
    """
    children: dict[int, list[int]] = {}
    for pid, stat in table.items():
        children.setdefault(stat["parent"], []).append(pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        waiting += (fresh := [child for child in children.get(waiting.pop(), ()) if child not in found])
        found.update(fresh)
    return found


def marked(variable: str, value: str) -> set[int]:
    """Every process that was started with this environment variable, if its environment can be read."""
    wanted = f"{variable}={value}".encode()
    return {pid for pid in pids() if wanted in environment_of(pid)}


def environment_of(pid: int) -> list[bytes]:
    """The environment that a process was started with; empty if it has ended or may not be read.

    If the first thread of a process has ended, it is read from another thread.
    """
    if content := _environ(pid):
        return content.split(b"\0")
    found = (_environ(f"{pid}/task/{thread}") for thread in _threads(pid))
    return next((content.split(b"\0") for content in found if content), [])


def _environ(process: int | str) -> bytes:
    try:
        return _content(f"{process}/environ")
    except OSError:
        return b""


def _content(name: str) -> bytes:
    """The content of a file in `/proc`. This takes a third of the CPU time of `Path.read_bytes`."""
    with open(f"{_PROC}/{name}", "rb", buffering=0) as file:  # noqa: PTH123  # see above
        return file.readall()


def pids() -> Iterator[int]:
    """All current pids."""
    return (int(name) for name in os.listdir(_PROC) if name.isdecimal())  # noqa: PTH208  # only names are needed


def memory_of(processes: Iterable[int]) -> int:
    """The sum of the resident memory of these processes in bytes. Shared pages are counted for each of them."""
    page = os.sysconf("SC_PAGE_SIZE")
    return sum(_resident_pages(pid) for pid in processes) * page


def _resident_pages(pid: int) -> int:
    try:
        return int(_content(f"{pid}/statm").split()[1])
    except (OSError, IndexError):
        return 0


def is_zombie(pid: int) -> bool:
    """Whether all threads of a process have ended, or it does not exist.

    The kernel also shows a process as a zombie if only its first thread has ended and others still run.
    """
    return _state(pid) in _ENDED and len(_threads(pid)) <= 1


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal (SIGSTOP), or has ended."""
    return all(_state(pid, thread) in {"T", *_ENDED} for thread in _threads(pid))


def _state(pid: int, thread: str = "") -> str | None:
    """The state of a process or of one of its threads (proc(5)), or None if it does not exist."""
    try:
        return _stat_text(pid, thread).rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None


def _stat_text(pid: int, thread: str = "") -> str:
    """The line in `/proc` about a process or one of its threads. The name in it may not be UTF-8."""
    name = f"{pid}/task/{thread}/stat" if thread else f"{pid}/stat"
    return _content(name).decode(errors="replace")
