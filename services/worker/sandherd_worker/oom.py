"""Whether the kernel has killed for want of memory: the counter of the control group, or of the whole machine.

And how much memory there was.
"""

from pathlib import Path
from typing import Final

from sandherd.contracts.quantities import MAX_WHOLE

_MACHINE: Final = Path("/proc/vmstat")
_PEAK: Final = ("memory.peak", "memory.max_usage_in_bytes")
_LIMIT: Final = ("memory.max", "memory.limit_in_bytes")


def kills(cgroup: Path | None, machine: Path = _MACHINE) -> int | None:
    """How often the kernel has killed a process for want of memory, as far as can be seen from here.

    The count of the sandbox's own control group (version 2 or 1) if the runtime shows one, else the machine's: a
    kill elsewhere, between two looks, would then count too. None if neither can be read.
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


def figures(cgroup: Path | None) -> dict[str, int | None]:
    """The most that the sandbox's control group has held, and what it may hold: as the end of an attempt tells it.

    None for what can't be seen from here, and for a limit that is none.
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
