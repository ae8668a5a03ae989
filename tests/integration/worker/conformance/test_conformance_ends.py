"""Agents of every kind end exactly once in a real worker, whoever kills what, and leave nothing behind."""

import asyncio
import signal
from typing import Any

import psutil
import pytest

from sandherd_worker.exits import ExitCode
from tests.integration.worker.conformance.acts import Run
from tests.integration.worker.conformance.adapters import Adapter

pytestmark = [pytest.mark.agents, pytest.mark.faults, pytest.mark.timeout(300)]

HIDES = "env -i setsid /bin/sh -c 'echo $$ >hidden; exec sleep 4715' &"
SPAWNS = f"(setsid sleep 4715 &); ({HIDES}); until test -s hidden; do sleep 0.05; done; touch began; sleep 4715"
GRACE = 10.0
"""What a runtime gives by itself."""


async def busy(agent: Adapter, sandbox: Any, eventually: Any) -> None:
    """Start it, and wait until it is in a command that has put processes of its own out of reach.

    One of them has gone out of its session, another one has forgotten its whole environment, too.
    """
    agent.begins(Run(SPAWNS))
    await sandbox.start(SANDHERD_STOP_GRACE=str(GRACE))
    await eventually((sandbox.work / "began").exists, "the agent is at it")
    await sandbox.event("tool_use")


def hidden(sandbox: Any) -> bool:
    """Whether the process that has forgotten its environment still lives."""
    try:
        status = psutil.Process(int((sandbox.work / "hidden").read_text())).status()
    except psutil.NoSuchProcess:
        return False
    return bool(status != psutil.STATUS_ZOMBIE)


async def test_an_agent_that_is_killed_has_one_end(agent: Adapter, which: str, sandbox: Any, eventually: Any) -> None:
    """By kill -9: one failure with its signal, and no process is left, not even an orphan; its session is kept."""
    await busy(agent, sandbox, eventually)
    if agent.keeps_session:
        await eventually(lambda: any((sandbox.state / "driver").rglob("*.jsonl")), "the session is on the disk")
    agent.victim(which).kill()
    assert await sandbox.ended() == ExitCode.DRAINED
    (failed,) = await sandbox.events("completed", "failed")
    assert (failed.type, failed.data.error_type, failed.data.signal) == ("agent.failed", "signal", 9)
    kept = [event for event in await sandbox.events("transcript_saved") if event.data.session_id]
    assert bool(kept) == agent.keeps_session
    assert (await sandbox.events())[-1].type == "agent.shutdown"
    assert agent.processes() == []
    assert not hidden(sandbox)


async def test_a_worker_that_is_killed_leaves_nothing(agent: Adapter, sandbox: Any, eventually: Any) -> None:
    """By kill -9: the recovery ends its agent with all that it has started, and says that the worker was lost, once."""
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
    # Nobody but a control group could still find it.
    psutil.Process(int((sandbox.work / "hidden").read_text())).kill()


async def test_a_worker_that_is_stopped_drains_in_its_grace(agent: Adapter, sandbox: Any, eventually: Any) -> None:
    """Killed by what its grace would end with, had it not ended by itself: one end, the last word, and the session."""
    await busy(agent, sandbox, eventually)
    sandbox.signal(signal.SIGTERM)
    kill = asyncio.get_running_loop().call_later(GRACE, sandbox.process.kill)
    assert await sandbox.ended() == ExitCode.DRAINED
    kill.cancel()
    (failed,) = await sandbox.events("completed", "failed")
    assert (failed.type, failed.data.error_type) == ("agent.failed", "stopped")
    assert (await sandbox.events())[-1].type == "agent.shutdown"
    kept = [event for event in await sandbox.events("transcript_saved") if event.data.session_id]
    assert bool(kept) == agent.keeps_session
    assert agent.processes() == []
    assert not hidden(sandbox)
