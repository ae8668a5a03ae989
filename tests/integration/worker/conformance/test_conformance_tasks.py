"""Agents of every kind complete their task in a real worker, which reports all of their actions."""

from typing import Any

import pytest

from sandherd.contracts.harnesses import HARNESSES
from sandherd.contracts.subjects import ARTIFACT
from sandherd_worker.worker_exit import ExitCode
from tests.integration.worker.conformance.acts import Edit, Run, Say
from tests.integration.worker.conformance.adapters import KINDS, Adapter

pytestmark = [pytest.mark.agents, pytest.mark.timeout(900)]

PLAIN, AWKWARD = "correct-horse-battery", 'pÿthon "staple" \\ one'


async def test_task_is_completed_and_reported(agent: Adapter, sandbox: Any) -> None:
    """From the start to the one end all events are in order without a gap: edit, tool call, texts and cost."""
    agent.begins(Edit("made.txt", "one"), Run("cat made.txt"), Say("Done."))
    assert await sandbox.run() == ExitCode.DRAINED
    events = await sandbox.events()
    types = [event.type.removeprefix("agent.") for event in events if event.type != "agent.heartbeat"]
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert (types[0], types[-2:]) == ("started", ["completed", "shutdown"])
    assert [kind for kind in types if kind in {"completed", "failed"}] == ["completed"]
    assert (await sandbox.event("started")).data.sdk == agent.kind
    assert (sandbox.work / "made.txt").read_text().splitlines() == ["one"]
    (edited,) = await sandbox.events("file_edited")
    assert (edited.data.file_path, edited.data.change_type, edited.data.lines_added) == ("made.txt", "created", 1)
    assert "Done." in [event.data.content for event in events if event.type == "agent.message"]
    assert agent.edits_with in _calls(events)
    completed = (await sandbox.event("completed")).data
    assert min(completed.input_tokens, completed.output_tokens, completed.cost_micro_usd) > 0
    spent = sum(event.data.cost_micro_usd for event in events if event.type == "agent.usage")
    assert completed.cost_micro_usd == spent
    assert agent.processes() == []


def _calls(events: list[Any]) -> list[str]:
    """The tools that were called; each call has one begin, and an end after it."""
    begun = {event.data.tool_use_id: event for event in events if event.type == "agent.tool_use"}
    assert len(begun) == len([event for event in events if event.type == "agent.tool_use"])
    for end in ("agent.tool_result", "agent.tool_completed"):
        ended = {event.data.tool_use_id: event for event in events if event.type == end}
        assert ended.keys() == begun.keys(), end
        assert all(ended[call].sequence > begun[call].sequence for call in begun)
    return [event.data.tool for event in begun.values()]


async def test_heartbeats_come_during_a_long_turn(agent: Adapter, sandbox: Any, eventually: Any) -> None:
    """Heartbeats are published while the agent is in one long tool call."""
    agent.begins(Run("touch began; until test -e go; do sleep 0.05; done"), Say("Done."))
    await sandbox.start(HEARTBEAT_INTERVAL="0.2")
    await eventually((sandbox.work / "began").exists, "the agent is at it")
    before = len(await sandbox.events("heartbeat"))

    async def five() -> bool:
        return len(await sandbox.events("heartbeat")) >= before + 5

    await eventually(five, "five heartbeats")
    assert (await sandbox.events("heartbeat"))[-1].data.status == "running"
    assert await sandbox.events("completed", "failed") == []
    (sandbox.work / "go").touch()
    assert await sandbox.ended() == ExitCode.DRAINED
    assert len(await sandbox.events("completed")) == 1


async def test_secrets_are_redacted(agent: Adapter, sandbox: Any) -> None:
    """No event, output or transcript has a secret, plain or with characters that JSON escapes."""
    show = 'printf "%s\\n" "$PLAIN" "$AWKWARD"'
    agent.begins(Run(f"{show} >leak.txt; {show}"), Say("Done."), secrets={"PLAIN": PLAIN, "AWKWARD": AWKWARD})
    assert await sandbox.run() == ExitCode.DRAINED
    assert (sandbox.work / "leak.txt").read_text() == f"{PLAIN}\n{AWKWARD}\n"
    assert await sandbox.events("file_edited") != []
    subjects = (
        f"sandherd.v1.event.default.{sandbox.name}.agent.*",
        ARTIFACT.pattern({"project": "default", "sandbox": sandbox.name}),
    )
    stored = [data for subject in subjects for _, data, _ in await sandbox.stored(subject)]
    everything = b"".join(stored).decode(errors="replace") + await sandbox.output() + sandbox.log.read_text()
    assert everything.count("[redacted]") >= 4
    assert PLAIN not in everything
    for shape in ("pÿthon", "p\\u00ffthon", "staple"):
        assert shape not in everything
    sessions = [event for event in await sandbox.events("transcript_saved") if event.data.session_id]
    assert bool(sessions) == agent.keeps_session


def test_every_kind_has_an_adapter() -> None:
    """Every kind has an adapter, so that a new kind is tested as well."""
    assert KINDS.keys() == HARNESSES.keys()
