"""Agents that take more memory than their sandbox may have, in a control group of their own: the kernel kills them."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from sandherd.contracts.names import new_name
from sandherd_worker.exits import ExitCode
from spawner.runtimes import cgroups
from spawner.runtimes.limits import GroupLimits
from tests.integration.worker.conformance.acts import Run, Say
from tests.integration.worker.conformance.adapters import SCRIPTED_ACP, Acp

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]

LIMIT = 192 * 1024 * 1024
HOARD = "held = bytearray(400 << 20)"
ENTER = 'echo 0 >"$0/cgroup.procs" && exec "$@"'
HOARDS_LATER = f"""
import runpy, sys, threading, time
from pathlib import Path

def hoard():
    while not Path("began").exists():
        time.sleep(0.02)
    {HOARD}

threading.Thread(target=hoard, daemon=True).start()
sys.path[0] = {str(SCRIPTED_ACP.parent)!r}
runpy.run_path({str(SCRIPTED_ACP)!r}, run_name="__main__")
"""


@pytest.fixture
def group(sandbox: Any) -> Iterator[cgroups.Groups]:
    """The sandbox is in a control group that holds it to `LIMIT` bytes, as the process runtime makes them."""
    groups = cgroups.find(new_name("test"))
    if groups.memory is None:
        pytest.skip("this host lets us make no memory control group")
    (own,) = {
        folder for folder in groups.make(sandbox.name, GroupLimits(LIMIT, 500)) if groups.memory in folder.parents
    }
    sandbox.within = ["/bin/sh", "-c", ENTER, str(own)]
    sandbox.environment["SANDHERD_CGROUP"] = str(own)
    yield groups
    groups.remove(sandbox.name)
    groups.close()


async def check_end(sandbox: Any, group: cgroups.Groups) -> Any:
    """One end, for want of memory, with how much there was; nothing is left in the group. Returns the end."""
    assert await sandbox.run() == ExitCode.DRAINED, sandbox.log.read_text()[-3000:]
    assert group.kills(sandbox.name) == 1
    (failed,) = await sandbox.events("completed", "failed")
    assert (failed.type, failed.data.error_type, failed.data.signal) == ("agent.failed", "out_of_memory", 9)
    assert "memory" in failed.data.error
    assert failed.data.memory_limit_bytes == LIMIT
    assert LIMIT // 2 < failed.data.memory_peak_bytes <= LIMIT
    assert group.members(sandbox.name) == set()
    return failed.data


async def test_a_program_that_is_killed_for_memory(sandbox: Any, group: cgroups.Groups) -> None:
    """The program itself."""
    sandbox.python(HOARD)
    await check_end(sandbox, group)


async def test_a_script_whose_program_is_killed_for_memory(sandbox: Any, group: cgroups.Groups) -> None:
    """The shell lives, and says with its exit status what became of the program."""
    sandbox.task(f"{sys.executable} -c '{HOARD}'")
    assert (await check_end(sandbox, group)).exit_code == 137


@pytest.mark.agents
async def test_an_agents_program_below_a_driver_that_is_killed_for_memory(sandbox: Any, group: cgroups.Groups) -> None:
    """The driver lives, and says what became of the agent's own program."""
    agent = Hoarder(sandbox)
    agent.begins(Run("touch began; sleep 600"), Say("Done."))
    await check_end(sandbox, group)
    assert agent.processes() == []


@pytest.mark.agents
async def test_a_tool_that_is_killed_for_memory_is_not_the_agents_end(sandbox: Any, group: cgroups.Groups) -> None:
    """The agent goes on, and does its task."""
    agent = Acp(sandbox)
    agent.begins(Run(f"{sys.executable} -c '{HOARD}'; echo so be it >survived"), Say("Done."))
    assert await sandbox.run() == ExitCode.DRAINED
    assert group.kills(sandbox.name) == 1
    assert (sandbox.work / "survived").exists()
    assert [event.type for event in await sandbox.events("completed", "failed")] == ["agent.completed"]


class Hoarder(Acp):
    """The same agent, which takes more memory than there is as soon as it is at work."""

    def harness(self) -> dict[str, Any]:
        python = super().harness()["argv"][0]
        return {"kind": "acp", "argv": [python, "-c", HOARDS_LATER]}
