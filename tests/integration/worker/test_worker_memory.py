"""Agents exceed their sandbox's memory in their own control group, and the kernel kills them."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from sandherd.contracts.names import new_name
from sandherd_worker.worker_exit import ExitCode
from spawner.runtimes import cgroups
from spawner.runtimes.kernel_limits import GroupLimits
from tests.integration.worker.conformance.acts import Run, Say
from tests.integration.worker.conformance.adapters import Acp

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

LIMIT = 192 * 1024 * 1024
HOARD = "held = bytearray(400 << 20)"
ENTER = 'echo 0 >"$0/cgroup.procs" && exec "$@"'


@pytest.fixture
def group(sandbox: Any) -> Iterator[cgroups.ControlGroups]:
    """A control group that limits the sandbox to `LIMIT` bytes, as the process runtime creates it."""
    groups = cgroups.open_groups(new_name("test"))
    assert groups.memory is not None, "this host lets us make no memory control group: run the tests as root"
    (own,) = {
        folder for folder in groups.make(sandbox.name, GroupLimits(LIMIT, 500)) if groups.memory in folder.parents
    }
    sandbox.within = ["/bin/sh", "-c", ENTER, str(own)]
    sandbox.environment["SANDHERD_CGROUP"] = str(own)
    yield groups
    groups.remove(sandbox.name)
    groups.close()


async def check_end(sandbox: Any, group: cgroups.ControlGroups) -> Any:
    """Check that there is one end, for lack of memory and with its amount, and no process. Returns the end."""
    assert await sandbox.run() == ExitCode.DRAINED, sandbox.log.read_text()[-3000:]
    assert group.oom_kills(sandbox.name) == 1
    (failed,) = await sandbox.events("completed", "failed")
    assert (failed.type, failed.data.error_type, failed.data.signal) == ("agent.failed", "out_of_memory", 9)
    assert "memory" in failed.data.error
    assert failed.data.memory_limit_bytes == LIMIT
    assert LIMIT // 2 < failed.data.memory_peak_bytes <= LIMIT
    assert group.members(sandbox.name) == set()
    return failed.data


async def test_script_reports_the_oom_kill_of_its_program(sandbox: Any, group: cgroups.ControlGroups) -> None:
    """The shell survives the kill of its program, and has the exit status of the killed program."""
    sandbox.task(f"{sys.executable} -c '{HOARD}'")
    assert (await check_end(sandbox, group)).exit_code == 137


@pytest.mark.agents
async def test_oom_kill_of_a_tool_does_not_end_the_agent(sandbox: Any, group: cgroups.ControlGroups) -> None:
    """The agent continues after the kernel has killed its tool, and completes its task."""
    agent = Acp(sandbox)
    agent.begins(Run(f"{sys.executable} -c '{HOARD}'; echo so be it >survived"), Say("Done."))
    assert await sandbox.run() == ExitCode.DRAINED
    assert group.oom_kills(sandbox.name) == 1
    assert (sandbox.work / "survived").exists()
    assert [event.type for event in await sandbox.events("completed", "failed")] == ["agent.completed"]
