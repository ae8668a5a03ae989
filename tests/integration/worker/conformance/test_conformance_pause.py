"""Agents of every kind are frozen during their work, as `pause` does, and continue."""

from datetime import UTC, datetime
from typing import Any

import pytest

from sandherd.bus.connection import NoResponderError, RequestTimeoutError
from sandherd.contracts.names import new_name
from sandherd.contracts.requests import WorkerExec
from sandherd_worker.worker_exit import ExitCode
from tests.integration.worker.conformance.acts import Run, Say
from tests.integration.worker.conformance.adapters import Adapter
from tests.integration.worker.conformance.groups import Group

pytestmark = [pytest.mark.agents, pytest.mark.timeout(900)]

HOLD = "touch began; until test -e go; do sleep 0.05; done; echo over"


async def test_frozen_agent_continues_its_turn(agent: Adapter, sandbox: Any, group: Group, eventually: Any) -> None:
    """A frozen agent publishes nothing and replies to nothing; then it completes the same turn."""
    agent.begins(Run(HOLD), Say("Done."))
    await sandbox.start(HEARTBEAT_INTERVAL="0.2")
    group.take_in(sandbox.process.pid)
    await eventually((sandbox.work / "began").exists, "the agent is at it")
    await eventually(group.freeze, "it stands still")
    frozen = datetime.now(UTC)
    (sandbox.work / "go").touch()
    with pytest.raises((RequestTimeoutError, NoResponderError)):  # it may not have subscribed yet
        await sandbox.desk.bus.ask(
            WorkerExec(exec=new_name("exc"), command=["true"]), "default", sandbox=sandbox.name, timeout=2
        )
    # What was published before may still be on its way to the broker.
    assert [event for event in await sandbox.events() if event.time > frozen] == []
    group.thaw()
    assert await sandbox.ended() == ExitCode.DRAINED
    (end,) = await sandbox.events("completed", "failed")
    assert (end.type, len(await sandbox.events("turn_completed"))) == ("agent.completed", 1)
    assert "Done." in [event.data.content for event in await sandbox.events("message")]
    assert await sandbox.events("stream_error", "error") == []
    assert agent.processes() == []
