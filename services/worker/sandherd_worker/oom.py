"""Counts out-of-memory kills by the kernel, in the cgroup or on the whole machine.

Also reads the peak and the limit of the memory.
"""

from pathlib import Path
from typing import Final

from sandherd.contracts.model import MAX_WHOLE

_MACHINE: Final = Path("/proc/vmstat")
_PEAK: Final = ("memory.peak", "memory.max_usage_in_bytes")
_LIMIT: Final = ("memory.max", "memory.limit_in_bytes")


def kills(cgroup: Path | None, machine: Path = _MACHINE) -> int | None:
    """The number of processes killed by the kernel's OOM killer; None if it can't be read.

    It is the count of the sandbox's own cgroup (version 2 or 1) if the runtime exposes it, else that of the machine,
    which also includes kills outside of the sandbox.
    """
    own = (cgroup / "memory.events", cgroup / "memory.oom_control") if cgroup else ()
    counts = (_count(path) for path in (*own, machine))
    return next((count for count in counts if count is not None), None)


def _count(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdigit():
            return int(value)
    return None


def memory_fields(cgroup: Path | None) -> dict[str, int | None]:
    """The peak memory of the sandbox's cgroup, and its limit, as fields of the event that ends an attempt.

    A value is None if it can't be read, or if there is no limit.
    """
    return {"memory_peak_bytes": _bytes(cgroup, _PEAK), "memory_limit_bytes": _bytes(cgroup, _LIMIT)}


def _bytes(cgroup: Path | None, names: tuple[str, ...]) -> int | None:
    for path in [cgroup / name for name in names] if cgroup else []:
        try:
            found = int(path.read_text())
        except (OSError, ValueError):
            continue
        return found if 0 <= found <= MAX_WHOLE else None
    return None
