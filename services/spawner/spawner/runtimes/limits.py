"""From what a task may use to what the kernel is told."""

import resource
from dataclasses import dataclass
from typing import Final

from sandherd.contracts.commands import Limits

_MIB: Final = 1024 * 1024
_KIB_PER_MIB: Final = 1024


@dataclass(frozen=True)
class ProcessLimits:
    """The limits of each process (setrlimit), as `ulimit` takes them; None is left alone."""

    open_files: int
    cpu_seconds: int
    data_kib: int | None
    """Private writable memory. Address space is not limited: runtimes such as node reserve far more than they use."""
    processes: int | None
    """Set inside the sandbox's own user namespace, so that it counts the sandbox and not the host's user."""


@dataclass(frozen=True)
class GroupLimits:
    """The limits of the sandbox as a whole (control groups)."""

    memory_bytes: int
    processes: int
    cores: float | None = None


def for_group(limits: Limits) -> GroupLimits:
    """What the sandbox as a whole may use."""
    return GroupLimits(memory_bytes=limits.memory_mb * _MIB, processes=limits.processes, cores=limits.cores)


def for_processes(limits: Limits, *, hard_files: int, memory_group: bool, count_processes: bool) -> ProcessLimits:
    """What each process may use: memory only where no control group holds the whole sandbox in its limit.

    `hard_files` is the greatest number of open files that this host lets us set.
    """
    return ProcessLimits(
        open_files=min(limits.open_files, hard_files),
        cpu_seconds=limits.cpu_seconds,
        data_kib=None if memory_group else limits.memory_mb * _KIB_PER_MIB,
        processes=limits.processes if count_processes else None,
    )


def hard_open_files() -> int:
    """How many open files this process may allow another at the most."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]
