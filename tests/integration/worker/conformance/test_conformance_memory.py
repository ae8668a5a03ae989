"""Agents of every kind whose process the kernel kills for memory, in a control group as a runtime makes one."""

import sys
from pathlib import Path
from typing import Any, Final

import pytest

from sandherd_worker.exits import ExitCode
from tests.integration.worker.conformance.acts import Run
from tests.integration.worker.conformance.adapters import Adapter
from tests.integration.worker.conformance.groups import AMPLE, Group

pytestmark = [pytest.mark.agents, pytest.mark.faults, pytest.mark.timeout(300)]

ROOM: Final = 16 << 20
"""How much the greedy command may take before the kernel has to kill, in bytes."""
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


async def test_oom_kill_is_reported_with_its_figures(
    agent: Adapter, which: str, sandbox: Any, group: Group, eventually: Any
) -> None:
    """Whichever process the kernel kills: out of memory, how much there was, and one end."""
    (sandbox.work / "greedy.py").write_text(GREEDY)
    agent.begins(Run(f"{sys.executable} greedy.py"))
    await sandbox.start(SANDHERD_CGROUP=str(group.memory))
    group.take_in(sandbox.process.pid)
    await eventually((sandbox.work / "began").exists, "the agent is at it")
    Path(f"/proc/{agent.victim(which).pid}/oom_score_adj").write_text(FIRST)
    group.tighten(ROOM)
    (sandbox.work / "go").touch()
    assert await sandbox.ended() == ExitCode.DRAINED
    (end,) = await sandbox.events("completed", "failed")
    failed = end.data
    assert (end.type, failed.error_type, failed.signal) == ("agent.failed", "out_of_memory", 9)
    assert failed.memory_peak_bytes > ROOM
    assert ROOM < failed.memory_limit_bytes < AMPLE
    assert agent.processes() == []
