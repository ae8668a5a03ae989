"""Converts the limits of a sandbox into kernel limits."""

import resource
from dataclasses import dataclass
from typing import Final

from sandherd.contracts.commands import SandboxLimits

_MIB: Final = 1024 * 1024
_KIB_PER_MIB: Final = 1024


@dataclass(frozen=True)
class ProcessLimits:
    """The limits of each process (setrlimit), in the units of `ulimit`. None: the limit is not changed."""

    open_files: int
    cpu_seconds: int
    data_kib: int | None
    """The limit of private writable memory. Address space is not limited: programs such as node reserve far more of it
    than they use."""
    processes: int | None
    """The limit of the number of processes. It is set in the sandbox's user namespace, so that it counts the processes
    of the sandbox, not all processes of the host's user."""


@dataclass(frozen=True)
class GroupLimits:
    """The limits of the sandbox as a whole (control groups)."""

    memory_bytes: int
    processes: int
    cores: float | None = None


def for_group(limits: SandboxLimits) -> GroupLimits:
    """The limits of the sandbox as a whole, for its control groups."""
    return GroupLimits(memory_bytes=limits.memory_mb * _MIB, processes=limits.processes, cores=limits.cores)


def for_processes(
    limits: SandboxLimits, *, hard_files: int, memory_group: bool, count_processes: bool
) -> ProcessLimits:
    """The limits of each process. Memory is limited only if no control group limits it (`memory_group`).

    `hard_files`: the maximum number of open files that this process may set. `count_processes`: whether the number of
    processes is limited.
    """
    return ProcessLimits(
        open_files=min(limits.open_files, hard_files),
        cpu_seconds=limits.cpu_seconds,
        data_kib=None if memory_group else limits.memory_mb * _KIB_PER_MIB,
        processes=limits.processes if count_processes else None,
    )


def hard_open_files() -> int:
    """The maximum number of open files that this process may set for another process."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def as_resources(limits: ProcessLimits) -> dict[str, int]:
    """The limits of each process that are changed, by their names and in the units of module `resource`."""
    data = None if limits.data_kib is None else limits.data_kib * 1024
    resources = {
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_CPU": limits.cpu_seconds,
        "RLIMIT_DATA": data,
        "RLIMIT_NPROC": limits.processes,
    }
    return {name: limit for name, limit in resources.items() if limit is not None}
