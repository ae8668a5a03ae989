"""Agents of every kind end exactly once in a real worker, whichever process is killed, and leave no process."""

import asyncio
import signal
from typing import Any

import psutil
import pytest

from sandherd_worker.worker_exit import ExitCode
from tests.integration.worker.conformance.acts import Run
from tests.integration.worker.conformance.adapters import Adapter

pytestmark = [pytest.mark.agents, pytest.mark.faults, pytest.mark.timeout(900)]

HIDES = "env -i setsid /bin/sh -c 'echo $$ >hidden; exec sleep 4715' &"
SPAWNS = f"(setsid sleep 4715 &); ({HIDES}); until test -s hidden; do sleep 0.05; done; touch began; sleep 4715"
GRACE = 10.0
"""The grace of a runtime by default, in seconds."""


async def busy(agent: Adapter, sandbox: Any, eventually: Any) -> None:
    """Start the agent, and wait until it runs a command that has hidden two of its processes.

    One has left its session; the other has also cleared its environment.
    """
    agent.begins(Run(SPAWNS))
    await sandbox.start(SANDHERD_STOP_GRACE=str(GRACE))
    await eventually((sandbox.work / "began").exists, "the agent is at it")
    await sandbox.event("tool_use")


def hidden(sandbox: Any) -> bool:
    """Whether the process with the cleared environment still lives."""
    try:
        status = psutil.Process(int((sandbox.work / "hidden").read_text())).status()
    except psutil.NoSuchProcess:
        return False
    return bool(status != psutil.STATUS_ZOMBIE)


async def test_killed_agent_has_one_end(agent: Adapter, which: str, sandbox: Any, eventually: Any) -> None:
    """A killed agent has one failure with the signal and a stored session; no process is left, not even an orphan."""
    await busy(agent, sandbox, eventually)
    if agent.keeps_session:
        await eventually(lambda: any((sandbox.state / "driver").rglob("*.jsonl")), "the session is on the disk")
    agent.victim(which).kill()
    assert await sandbox.ended() == ExitCode.DRAINED
    (failed,) = await sandbox.events("completed", "failed")
    assert (failed.type, failed.data.error_type, failed.data.signal) == ("agent.failed", "signal", 9)
    stored = [event for event in await sandbox.events("transcript_saved") if event.data.session_id]
    assert bool(stored) == agent.keeps_session
    assert (await sandbox.events())[-1].type == "agent.shutdown"
    assert agent.processes() == []
    assert not hidden(sandbox)


async def test_killed_worker_leaves_nothing(agent: Adapter, sandbox: Any, eventually: Any) -> None:
    """After a SIGKILL of the worker the recovery ends the agent with all its children, and reports the loss once."""
    await busy(agent, sandbox, eventually)
    sandbox.signal(signal.SIGKILL)
    await sandbox.ended()
    assert agent.processes() != []
    assert await sandbox.run("--recover") == ExitCode.DRAINED
    (failed,) = await sandbox.events("completed", "failed")
    assert (failed.type, failed.data.error_type) == ("agent.failed", "worker_lost")
    events = await sandbox.events()
    assert events[-1].type == "agent.shutdown"
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert agent.processes() == []
    # Only a control group could find it.
    psutil.Process(int((sandbox.work / "hidden").read_text())).kill()


async def test_stopped_worker_drains_within_its_grace(agent: Adapter, sandbox: Any, eventually: Any) -> None:
    """A stopped worker publishes one end, the shutdown event and the session within its grace, without being killed."""
    await busy(agent, sandbox, eventually)
    sandbox.signal(signal.SIGTERM)
    kill = asyncio.get_running_loop().call_later(GRACE, sandbox.process.kill)
    assert await sandbox.ended() == ExitCode.DRAINED
    kill.cancel()
    (failed,) = await sandbox.events("completed", "failed")
    assert (failed.type, failed.data.error_type) == ("agent.failed", "stopped")
    assert (await sandbox.events())[-1].type == "agent.shutdown"
    stored = [event for event in await sandbox.events("transcript_saved") if event.data.session_id]
    assert bool(stored) == agent.keeps_session
    assert agent.processes() == []
    assert not hidden(sandbox)
