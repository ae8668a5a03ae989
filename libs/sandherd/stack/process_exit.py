"""Determines why a process of a stack has ended, from its exit status, its log and the kernel's counters."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandherd.bus.storage_causes import Cause, cause_of

_MAX_READ_BYTES: Final = 1024 * 1024
_VMSTAT: Final = Path("/proc/vmstat")
_TEXTS: Final = {
    Cause.DISK_BYTES: "its disk was full",
    Cause.DISK_INODES: "its file system was out of inodes",
    Cause.DESCRIPTORS: "it was out of file descriptors",
    Cause.READ_ONLY: "its disk was read-only",
    Cause.MEMORY: "it was out of memory",
}
"""The texts for users, by the exhausted resource."""
KILLED: Final = "it was killed, perhaps by the kernel, which killed processes for lack of memory while it ran"
"""The kernel only counts its kills, also those of sandboxes that exceeded their limit, so this cause is uncertain."""


@dataclass(frozen=True)
class ProcessLife:
    """Values at the start of a process: the size of its log, and how many processes the kernel had killed."""

    log_size: int
    oom_kills: int


def process_life(log: Path) -> ProcessLife:
    """The values for a process that is about to be started."""
    return ProcessLife(log.stat().st_size if log.exists() else 0, count_oom_kills())


def exit_cause(life: ProcessLife, status: int | None, log: Path) -> str | None:
    """The exhausted resource that ended a process; None if none is known."""
    return cause_of_status(status, written_since(log, life.log_size), count_oom_kills() - life.oom_kills)


def cause_of_status(status: int | None, written: str, oom_kills: int) -> str | None:
    """The exhausted resource that ended a process, or None. Pure.

    `written` is the text that it logged; `oom_kills` is how many processes the kernel killed on this machine meanwhile.
    """
    if status == 0:
        return None
    if status == -signal.SIGKILL and oom_kills > 0:
        return KILLED
    # A Go program prints its error first, and then a stack trace for each goroutine.
    fatal = [line for line in written.splitlines() if line.startswith(("fatal error:", "runtime:"))]
    last_line = [line for line in written.splitlines() if line.strip()][-1:]
    causes = (cause_of(line) for line in (*fatal, *last_line))
    first_cause = next((cause for cause in causes if cause), None)
    return _TEXTS[first_cause] if first_cause else None


def written_since(log: Path, size: int) -> str:
    """The text of a log from position `size` on, at most 1 MiB; from its start if it was truncated meanwhile."""
    try:
        with log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(size if size <= end else 0)
            return file.read(_MAX_READ_BYTES).decode(errors="replace")
    except OSError:
        return ""


def count_oom_kills() -> int:
    """How many processes the kernel has killed for lack of memory since this machine booted (Linux 4.13)."""
    try:
        lines = _VMSTAT.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
