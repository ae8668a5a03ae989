"""Whether the kernel has killed for want of memory: the counter of the control group, or of the whole machine."""

from pathlib import Path
from typing import Final

_MACHINE: Final = Path("/proc/vmstat")


def kills(cgroup: Path | None, machine: Path = _MACHINE) -> int | None:
    """How often the kernel has killed a process for want of memory, as far as can be seen from here.

    The count of the sandbox's own control group (version 2 or 1) if the runtime shows one, else the machine's: a
    kill elsewhere at the same moment would then count too. None if neither can be read.
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
