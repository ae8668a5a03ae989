"""In a control group as a runtime creates it, the kernel kills agents of every kind that exceed the memory."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from sandherd_worker.worker_exit import ExitCode
from tests.integration.worker.conformance.acts import Run
from tests.integration.worker.conformance.adapters import Adapter
from tests.integration.worker.conformance.groups import AMPLE, Group

pytestmark = [pytest.mark.agents, pytest.mark.faults, pytest.mark.timeout(900)]

EXTRA_BYTES: Final = 256 << 20
"""The bytes that the greedy command may use before the kernel kills.

Each CPU may retain some tens of MiB of a killed process for a while: with little memory the kernel would have to kill
the worker as well.
"""
FIRST, SECOND = "1000", "0"
"""Values of `oom_score_adj` (proc(5)) that determine the process that the kernel chooses.

The memory of the second counts as well: with a higher value it would be chosen first.
"""
GREEDY: Final = f"""
import mmap, os, time
open("/proc/self/oom_score_adj", "w").write("{SECOND}")
open("began", "w").close()
while not os.path.exists("go"):
    time.sleep(0.02)
size = {2 * EXTRA_BYTES}
block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(0, size, mmap.PAGESIZE):
    block[page] = 1
"""


async def test_oom_kill_is_reported_with_its_figures(
    agent: Adapter, which: str, sandbox: Any, group: Group, eventually: Any
) -> None:
    """Whichever process the kernel kills, the agent has one end: out of memory, with the amount of memory."""
    (sandbox.work / "greedy.py").write_text(GREEDY)
    agent.begins(Run(f"{sys.executable} greedy.py"))
    await sandbox.start(SANDHERD_CGROUP=str(group.memory))
    group.take_in(sandbox.process.pid)
    await eventually((sandbox.work / "began").exists, "the agent is at it")
    Path(f"/proc/{agent.victim(which).pid}/oom_score_adj").write_text(FIRST)
    group.tighten(EXTRA_BYTES)
    (sandbox.work / "go").touch()
    assert await sandbox.ended() == ExitCode.DRAINED
    (end,) = await sandbox.events("completed", "failed")
    failed = end.data
    assert (end.type, failed.error_type, failed.signal) == ("agent.failed", "out_of_memory", 9)
    assert failed.memory_peak_bytes > EXTRA_BYTES
    assert EXTRA_BYTES < failed.memory_limit_bytes < AMPLE
    assert agent.processes() == []


async def test_agents_are_killed_before_their_worker(agent: Adapter, sandbox: Any, eventually: Any) -> None:
    """When memory is short, the kernel kills every process of an agent, of any kind, before the worker."""
    agent.begins(Run("touch began; sleep 300"))
    await sandbox.start()
    await eventually((sandbox.work / "began").exists, "the agent is at it")
    worker = int(Path(f"/proc/{sandbox.process.pid}/oom_score_adj").read_text())
    scores = list(_scores(process.pid for process in agent.processes()))
    assert scores
    assert set(scores) == {min(1000, worker + 500)}


def _scores(pids: Iterable[int]) -> Iterator[int]:
    """The scores of those processes that have not ended: an agent starts and ends processes at any time."""
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            yield int(Path(f"/proc/{pid}/oom_score_adj").read_text())
