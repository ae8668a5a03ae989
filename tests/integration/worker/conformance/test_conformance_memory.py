"""Agents of every kind whose process the kernel kills for memory, in a control group as a runtime makes one."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from sandherd.contracts.names import new_name
from sandherd_worker.exits import ExitCode
from spawner.runtimes.cgroups import Groups, find
from spawner.runtimes.limits import GroupLimits
from tests.integration.worker.conformance.acts import Run
from tests.integration.worker.conformance.adapters import Adapter

pytestmark = [pytest.mark.agents, pytest.mark.faults, pytest.mark.timeout(300)]

ROOM: Final = 16 << 20
"""How much the greedy command may take before the kernel has to kill, in bytes."""
AMPLE: Final = 8 << 30
PROCESSES: Final = 4096
FIRST, SECOND = "1000", "500"
"""Whom of a group the kernel chooses (proc(5), `oom_score_adj`), so that its choice is no matter of chance."""
GREEDY: Final = f"""
import os, time
open("/proc/self/oom_score_adj", "w").write("{SECOND}")
open("began", "w").close()
while not os.path.exists("go"):
    time.sleep(0.02)
held = []
while True:
    held.append(os.urandom(1 << 20))
"""


@dataclass
class Group:
    """The control groups of one sandbox."""

    groups: Groups
    sandbox: str

    def __post_init__(self) -> None:
        assert self.groups.memory is not None
        self.memory: Path = self.groups.memory / self.sandbox
        self.groups.make(self.sandbox, GroupLimits(memory_bytes=AMPLE, processes=PROCESSES))

    def take_in(self, process: int) -> None:
        """This process belongs to it, and all that it will start."""
        for folder in self.groups.of(self.sandbox):
            (folder / "cgroup.procs").write_text(str(process))

    def tighten(self) -> None:
        """It may have little more than it has."""
        file = "memory.current" if self.groups.version == 2 else "memory.usage_in_bytes"
        limit = int((self.memory / file).read_text()) + ROOM
        self.groups.make(self.sandbox, GroupLimits(memory_bytes=limit, processes=PROCESSES))

    def end(self) -> bool:
        """Whether it is gone, with all that is in it."""
        for process in self.groups.members(self.sandbox):
            with suppress(ProcessLookupError):
                os.kill(process, 9)
        return self.groups.remove(self.sandbox)


@pytest.fixture
async def group(eventually: Any) -> AsyncIterator[Group]:
    groups = find(f"sandherd-{new_name('test')}")
    if groups.memory is None:
        groups.close()
        pytest.skip("this host lets us make no memory control group")
    group = Group(groups, "sandbox")
    yield group
    await eventually(group.end, "the group is gone")
    groups.close()


async def test_a_kill_for_memory_is_known_with_its_figures(
    agent: Adapter, which: str, sandbox: Any, group: Group, eventually: Any
) -> None:
    """Whichever of its processes it hits, and by the real kernel: out of memory, how much there was, and one end."""
    (sandbox.work / "greedy.py").write_text(GREEDY)
    agent.begins(Run(f"{sys.executable} greedy.py"))
    await sandbox.start(SANDHERD_CGROUP=str(group.memory))
    group.take_in(sandbox.process.pid)
    await eventually((sandbox.work / "began").exists, "the agent is at it")
    Path(f"/proc/{agent.victim(which).pid}/oom_score_adj").write_text(FIRST)
    group.tighten()
    (sandbox.work / "go").touch()
    assert await sandbox.ended() == ExitCode.DRAINED
    (end,) = await sandbox.events("completed", "failed")
    failed = end.data
    assert (end.type, failed.error_type, failed.signal) == ("agent.failed", "out_of_memory", 9)
    assert failed.memory_peak_bytes > ROOM
    assert ROOM < failed.memory_limit_bytes < AMPLE
    assert agent.processes() == []
