"""The control groups of one sandbox, made as a runtime makes them: how much memory it may have, and freezing it."""

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
    """The groups of one sandbox, with limits without effect."""

    groups: ControlGroups
    sandbox: str

    def __post_init__(self) -> None:
        self.groups.make(self.sandbox, GroupLimits(memory_bytes=AMPLE, processes=PROCESSES))

    @property
    def memory(self) -> Path:
        """The one that holds its memory."""
        assert self.groups.memory is not None
        return self.groups.memory / self.sandbox

    def take_in(self, process: int) -> None:
        """This process belongs to it, and all that it will start."""
        for folder in self.groups.of(self.sandbox):
            (folder / "cgroup.procs").write_text(str(process))

    def tighten(self, extra_bytes: int) -> None:
        """It may use this number of bytes in addition to its current use."""
        file = "memory.current" if self.groups.version == 2 else "memory.usage_in_bytes"
        limit = int((self.memory / file).read_text()) + extra_bytes
        self.groups.make(self.sandbox, GroupLimits(memory_bytes=limit, processes=PROCESSES))

    def freeze(self) -> bool:
        """Whether all of it stands still; it is frozen or thawed each time."""
        self.groups.set_frozen(self.sandbox, frozen=True)
        return self.groups.is_frozen(self.sandbox)

    def thaw(self) -> None:
        """Let it go on."""
        self.groups.set_frozen(self.sandbox, frozen=False)

    def end(self) -> bool:
        """Whether it is gone, with all that is in it."""
        self.thaw()
        for process in self.groups.members(self.sandbox):
            with suppress(ProcessLookupError):
                os.kill(process, 9)
        return self.groups.remove(self.sandbox)
