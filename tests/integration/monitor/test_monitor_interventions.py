"""Interventions on a real broker with the real relay: a pause, its approval, each decision; muting; `monitor show`."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from monitor.event_reader import EventReader
from monitor.replay.report import replay
from sandherd.client.context import Context
from sandherd.client.errors import HerdError
from sandherd.client.herd import Herd
from sandherd.contracts.errors import Code
from sandherd.contracts.states import SandboxState
from sandherd.contracts.subjects import Principal
from tests.polling import eventually
from tests.unit.monitor.rule_sets import with_ladder

World = Any
DENIED = {"rules": {"denials": {"consecutive": 3}}, "steering_cooldown": 0.01}


@asynccontextmanager
async def connected(world: World) -> AsyncIterator[Herd]:
    credentials = world.herd.credentials(Principal.CLIENT)
    context = Context(nats_url=world.herd.url, credentials=credentials, project="default", home=world.herd.home)
    async with Herd.connect(context) as herd:
        yield herd


async def denied(world: World, sandbox: str, key: str) -> None:
    """Publish a denied call."""
    await world.by_worker(sandbox, "agent.tool_use", tool="Bash", tool_use_id=key, input={"command": f"rm {key}"})
    await world.by_worker(sandbox, "agent.tool_result", tool_use_id=key, result="denied", outcome="denied")


def commands(world: World, sandbox: str) -> list[str]:
    """The verbs of the commands to the spawner about a sandbox."""
    return [one["type"].partition(".")[2] for one in world.commands if one["data"].get("sandbox") == sandbox]


async def paused(world: World, sandbox: str) -> str:
    """Have an agent paused after three denied calls, as the spawner does. Returns the requested approval."""
    await world.born(sandbox)
    await world.receive(sandbox)
    for number in range(3):
        await denied(world, sandbox, f"{sandbox}-{number}")
    await world.until(lambda: commands(world, sandbox) == ["pause_sandbox"])
    await world.record(sandbox, SandboxState.PAUSED)
    await world.by_spawner(sandbox, "sandbox.paused", reason="rule denials")
    await world.until(lambda: bool(world.of("approval.requested", sandbox)))
    [requested] = world.of("approval.requested", sandbox)
    assert requested["data"]["requested_by"] == "monitor"
    assert f"sandbox {sandbox} is paused by the rule denials" in requested["data"]["reason"]
    approval: str = requested["data"]["approval_id"]
    return approval


async def resumed(world: World, sandbox: str) -> None:
    """Resume the sandbox, as the spawner does, when it is commanded to."""
    await world.until(lambda: commands(world, sandbox)[1:] == ["resume_sandbox"])
    await world.record(sandbox)
    await world.by_spawner(sandbox, "sandbox.resumed")


async def outcome(world: World, sandbox: str) -> dict[str, Any]:
    await world.until(lambda: bool(world.of("monitor.intervention_outcome", sandbox)))
    [found] = world.of("monitor.intervention_outcome", sandbox)
    data: dict[str, Any] = found["data"]
    return data


async def test_each_answer_to_a_pause_is_executed(world: World) -> None:
    """Continue, continue with an instruction, and stop are executed; each intervention has one outcome."""
    monitor = {"max_intervention": "pause"} | DENIED
    async with world.relay().running(), connected(world) as herd:
        async with world.monitor(**monitor).running():
            approvals = {name: await paused(world, name) for name in ("sbx-go", "sbx-other", "sbx-stop", "sbx-user")}
            granted = await herd.grant("sbx-go", approvals["sbx-go"], by="ada")
            assert granted.state == "acknowledged"
            await resumed(world, "sbx-go")
        # The next monitor has all of this from the snapshot and the stream.
        await herd.grant("sbx-other", approvals["sbx-other"], reason="use the test database", by="ada")
        await herd.deny("sbx-stop", approvals["sbx-stop"], by="ada")
        await world.record("sbx-user")
        await world.by_spawner("sbx-user", "sandbox.resumed")
        async with world.monitor(**monitor).running():
            await resumed(world, "sbx-other")
            await world.until(lambda: "use the test database" in world.received)
            await world.until(lambda: commands(world, "sbx-stop")[1:] == ["terminate_sandbox"])
            assert world.requested("sbx-stop")[1:] == ["denials"]
            await world.until(lambda: bool(world.of("approval.expired", "sbx-user")))
            for name in ("sbx-go", "sbx-other", "sbx-user"):
                await world.by_worker(name, "agent.completed", exit_code=0)
            await world.by_spawner("sbx-stop", "sandbox.terminated", reason="denials")
            for name in approvals:
                assert (await outcome(world, name))["outcome"] in {"finished", "obeyed"}
    assert [event["data"]["step"] for event in world.of("monitor.intervention_decided")] == ["pause"] * 4
    assert [commands(world, name) for name in ("sbx-go", "sbx-other", "sbx-user")] == [
        ["pause_sandbox", "resume_sandbox"],
        ["pause_sandbox", "resume_sandbox"],
        ["pause_sandbox"],
    ]
    assert world.received == ["use the test database"]
    evidence = world.of("monitor.intervention_decided", "sbx-go")[0]["data"]["evidence"]
    assert len(evidence) == 3


async def test_muted_rule_stays_muted_after_a_restart(world: World) -> None:
    """`monitor show` still has the muted rule, with its count and what it would do next."""
    await world.born("sbx-1")
    await world.born("sbx-2")
    async with world.relay().running(), connected(world) as herd:
        async with world.monitor(**DENIED).running():
            await shown(herd, "sbx-1")
            view = await herd.mute_rule("sbx-1", "denials", seconds=3600, by="ada")
            [rule] = [one for one in view.rules if one.rule == "denials"]
            assert (rule.state, rule.muted_until is not None) == ("muted", True)
            with pytest.raises(HerdError, match="there is no guardian rule lop; there are"):
                await herd.mute_rule("sbx-1", "lop")
        async with world.monitor(**DENIED).running():
            for sandbox in ("sbx-1", "sbx-2"):
                for number in range(3):
                    await denied(world, sandbox, str(number))
            await world.until(lambda: bool(world.of("monitor.intervention_decided", "sbx-2")))
            view = await shown(herd, "sbx-1", lambda view: any(one.count == 3 for one in view.rules))
            assert (view.interventions, view.phase, view.max_intervention) == ([], "running", "nudge")
            other = await shown(herd, "sbx-2", lambda view: bool(view.interventions))
            assert [(one.rule, one.step) for one in other.interventions] == [("denials", "nudge")]
            assert [(one.rule, len(one.evidence)) for one in other.findings] == [("denials", 3)]
            await eventually(lambda: reported(herd, ("sbx-2", ["denials"], [("denials", "nudge", None)])))
            await herd.unmute_rule("sbx-1", "denials", by="ada")
            await world.until(lambda: bool(world.of("monitor.intervention_decided", "sbx-1")))
        with pytest.raises(HerdError) as refused:
            await herd.monitored("sbx-1")
    assert refused.value.problem.code is Code.UNAVAILABLE
    assert "start a monitor" in (refused.value.problem.remedy or "")
    assert [event["data"]["muted_by"] for event in world.of("monitor.rule_muted")] == ["ada"]


async def reported(herd: Herd, wanted: Any) -> bool:
    """Whether the report has this sandbox with these patterns, and these interventions with their outcomes."""
    [report] = (await herd.monitor_report()).projects
    return wanted in [
        (one.sandbox, one.findings, [(last.rule, last.step, last.outcome) for last in one.last])
        for one in report.interventions
    ]


async def shown(herd: Herd, sandbox: str, condition: Callable[[Any], bool] = lambda _view: True) -> Any:
    """The view of a sandbox, once it has this content."""
    while True:
        try:
            view = await herd.monitored(sandbox)
        except HerdError as error:
            if error.problem.code not in {Code.NOT_FOUND, Code.BUSY, Code.UNAVAILABLE}:
                raise
            continue
        if condition(view):
            return view


async def stored_lines(world: World) -> list[bytes]:
    """All events of the stream, oldest first, as `sandherd events -o jsonl` writes them."""
    async with world.herd.bus(Principal.MONITOR) as bus:
        batch = await EventReader(bus).read_from(1, lambda _subject: True)
    assert batch is not None
    return [event.data for event in batch.events]


async def test_replay_of_the_stored_events_decides_what_the_monitor_has_decided(world: World) -> None:
    """A replay decides the same: the agent ignores a nudge and obeys the next interrupt, over a monitor's restart.

    The live agent gets each message before it continues, as a replay assumes.
    """
    settings = {"max_intervention": "interrupt", "steering_cooldown": 0.001}
    decided, outcomes = "monitor.intervention_decided", "monitor.intervention_outcome"
    async with world.relay().running():
        async with world.monitor(**settings).running():
            await world.born("sbx-1")
            await world.receive("sbx-1")
            for number in range(4):
                await world.call("sbx-1", f"c{number}")
            await world.until(lambda: bool(world.of("message.acknowledged")))
        async with world.monitor(**settings).running():
            for number in range(4, 8):
                await world.call("sbx-1", f"c{number}")
            await world.until(lambda: len(world.of("message.acknowledged")) == 2)
            for number in range(10):
                await world.call("sbx-1", f"d{number}", f"cat {number}")
            await world.until(lambda: len(world.of(outcomes)) == 2)
    report = replay(await stored_lines(world), with_ladder("interrupt", 0.001))
    live = [(one["data"]["rule"], one["data"]["step"]) for one in world.of(decided)]
    recorded = [(one.rule, one.step, one.turn, one.outcome) for one in report.recorded_interventions]
    assert live == [(rule, step) for rule, step, _, _ in recorded]
    assert [one[3] for one in recorded] == ["ignored", "recovered"]
    assert [(one.rule, one.step, one.turn, one.outcome) for one in report.interventions] == recorded
    replayed = {(one.rule, tuple(one.evidence)) for one in report.findings}
    assert {(one.rule, tuple(one.evidence)) for one in report.recorded_findings} == replayed
