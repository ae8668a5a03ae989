"""The control groups of one sandbox, created as a runtime creates them: its memory limit, and freezing."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spawner.runtimes.cgroups import ControlGroups
from spawner.runtimes.kernel_limits import GroupLimits

AMPLE: Final = 8 << 30
PROCESSES: Final = 4096


@dataclass
class Group:
    """The groups of one sandbox, whose limits have no effect yet."""

    groups: ControlGroups
    sandbox: str

    def __post_init__(self) -> None:
        self.groups.make(self.sandbox, GroupLimits(memory_bytes=AMPLE, processes=PROCESSES))

    @property
    def memory(self) -> Path:
        """The group that limits its memory."""
        assert self.groups.memory is not None
        return self.groups.memory / self.sandbox

    def take_in(self, process: int) -> None:
        """Put this process, and all that it will start, into the groups."""
        for folder in self.groups.directories(self.sandbox):
            (folder / "cgroup.procs").write_text(str(process))

    def tighten(self, extra_bytes: int) -> None:
        """Limit the memory to its current use and this number of bytes."""
        file = "memory.current" if self.groups.version == 2 else "memory.usage_in_bytes"
        limit = int((self.memory / file).read_text()) + extra_bytes
        self.groups.make(self.sandbox, GroupLimits(memory_bytes=limit, processes=PROCESSES))

    def freeze(self) -> bool:
        """Request a freeze of all processes. Returns whether all of them are frozen."""
        self.groups.set_frozen(self.sandbox, frozen=True)
        return self.groups.is_frozen(self.sandbox)

    def thaw(self) -> None:
        """Thaw all processes."""
        self.groups.set_frozen(self.sandbox, frozen=False)

    def end(self) -> bool:
        """Kill all processes and remove the groups. Returns whether they are removed."""
        self.thaw()
        for process in self.groups.members(self.sandbox):
            with suppress(ProcessLookupError):
                os.kill(process, 9)
        return self.groups.remove(self.sandbox)
