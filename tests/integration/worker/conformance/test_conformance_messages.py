"""Agents of every kind in a real worker get messages, are interrupted, and get messages after the end."""

import asyncio
from typing import Any

import pytest

from sandherd.bus.connection import Bus
from sandherd_worker.worker_exit import ExitCode
from tests.integration.worker.conformance.acts import Recall, Receive, Run, Say
from tests.integration.worker.conformance.adapters import Adapter

pytestmark = [pytest.mark.agents, pytest.mark.timeout(900)]

HOLD = "touch began; until test -e go; do sleep 0.05; done"


async def test_message_reaches_the_working_agent(
    agent: Adapter, sandbox: Any, relay: Bus, letter: Any, eventually: Any
) -> None:
    """A message is acknowledged once: within the turn, or else as a turn of its own afterwards."""
    agent.begins(Receive("mind the gap"), Run(HOLD), Say("So be it."), linger_seconds=600)
    await sandbox.start()
    if not agent.receives_mid_turn:
        await eventually((sandbox.work / "began").exists, "the agent is at it")
    else:
        await sandbox.event("tool_use" if agent.has_turns else "turn_started")
    words = "mind the gap" if agent.receives_mid_turn else agent.words(Say("mind the gap"))
    delivering = asyncio.create_task(sandbox.deliver(relay, letter(words)))
    if agent.receives_mid_turn:
        assert (await delivering).outcome == "acknowledged"
        await eventually((sandbox.work / "began").exists, "the agent goes on")
    (sandbox.work / "go").touch()
    assert (await delivering).outcome == "acknowledged"
    injected, _ = await sandbox.event("message_injected"), await sandbox.event("waiting")
    first = (await sandbox.events("turn_completed"))[0]
    assert (injected.data.content, injected.sequence < first.sequence) == (words, agent.receives_mid_turn)
    sandbox.process.terminate()
    assert await sandbox.ended() == ExitCode.DRAINED
    assert len(await sandbox.events("message_injected")) == 1
    assert len(await sandbox.events("completed", "failed")) == 1
    assert agent.processes() == []


async def test_interrupt_keeps_the_session(
    agent: Adapter, sandbox: Any, relay: Bus, letter: Any, eventually: Any
) -> None:
    """After an interrupt the agent remembers its task; a message after the end starts a turn, or is refused."""
    agent.begins(Run("echo the first task; touch began; sleep 4714"), linger_seconds=600)
    await sandbox.start()
    await eventually((sandbox.work / "began").exists, "the agent is at it")
    stopping = letter(agent.words(Recall(), Say("Stopped.")), "interrupt")
    assert (await sandbox.deliver(relay, stopping)).outcome == "acknowledged"
    completed, interrupted = await sandbox.event("completed"), await sandbox.event("interrupted")
    assert interrupted.sequence < completed.sequence
    assert await agent.remembers("the first task")
    await eventually(lambda: not agent.running("sleep 4714"), "what it did has ended")
    await sandbox.event("waiting")
    receipt = await sandbox.deliver(relay, letter(agent.words(Recall(), Say("Again."))))
    assert receipt.outcome == ("acknowledged" if agent.follows_up else "rejected")
    expected = ["Stopped.", "Again."] if agent.follows_up else ["Stopped."]

    async def is_all_published() -> bool:
        words = [event.data.content for event in await sandbox.events("message")]
        return [word for word in words if not word.startswith("[")] == expected

    await eventually(is_all_published, "what it was told to say")
    assert await agent.remembers("Stopped.")
    sandbox.process.terminate()
    assert await sandbox.ended() == ExitCode.DRAINED
    stops = [event.data.stop_reason for event in await sandbox.events("turn_completed")]
    assert (stops[0], len(stops)) == (agent.stopped_as, 3 if agent.has_turns else 1)
    assert len(await sandbox.events("completed", "failed")) == 1
    assert agent.processes() == []
