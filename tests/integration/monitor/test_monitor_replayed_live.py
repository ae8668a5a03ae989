"""A replay of the events that a real monitor has read yields the decisions that it has published."""

import asyncio
from collections.abc import Iterable
from typing import Any

from monitor.event_reader import EventReader
from monitor.replay.report import replay
from monitor.rule_settings import rule_set_of
from sandherd.contracts.replay import ReplayedIntervention
from sandherd.contracts.subjects import Principal
from tests.recordings.sessions import events, labels

World = Any
SESSIONS = (
    "healthy-check-before-commit",
    "healthy-docs-only",
    "healthy-repeated-code",
    "chanting-message",
    "constraint-force-push",
    "edit-thrash-rewrites",
    "error-streak-text-not-found",
    "repeat-varied-words",
)
"""The healthy sessions come first: a finding in one would be published before the decisions about others."""
_ENDS = frozenset({"agent.completed", "agent.shutdown"})
_STAMPED = frozenset({"agent.started", "agent.heartbeat"})


async def publish(world: World, sandbox: str, recorded: Iterable[dict[str, Any]]) -> None:
    """Publish the events of a recording, as if its worker was running now."""
    for event in recorded:
        data = {
            key: value for key, value in event["data"].items() if key != "timestamp" or event["type"] not in _STAMPED
        }
        await world.by_worker(sandbox, event["type"], **data)


async def stored_lines(world: World) -> list[bytes]:
    """All events of the stream, as `sandherd events -o jsonl` writes them."""
    async with world.herd.bus(Principal.MONITOR) as bus:
        reader, lines, position = EventReader(bus), list[bytes](), 0
        last = (await reader.bounds()).last
        while position < last:
            batch = await reader.read_from(position + 1, lambda _subject: True)
            assert batch is not None
            lines += [bytes(event.data) for event in batch.events]
            position = batch.position
    return lines


def decided(interventions: Iterable[ReplayedIntervention]) -> list[tuple[str, str, str]]:
    return sorted((one.sandbox, one.rule, one.step) for one in interventions)


async def test_replay_of_a_live_monitor_gives_its_decisions(world: World) -> None:
    """Recorded sessions yield the same interventions of the same rules, and healthy ones none.

    An agent ends once the monitor has decided: the monitor does not intervene with an ended agent.
    """
    known = labels()
    recorded = {known[name]["sandbox"]: events(name) for name in SESSIONS}
    at_fault = [known[name]["sandbox"] for name in SESSIONS if known[name]["expect"]]
    for sandbox in recorded:
        await world.record(sandbox)
        await world.by_spawner(sandbox, "sandbox.requested")
    async with world.relay().running(), world.monitor().running():
        for sandbox, session in recorded.items():
            await publish(world, sandbox, [event for event in session if event["type"] not in _ENDS])
        async with asyncio.TaskGroup() as group:
            for sandbox in at_fault:
                group.create_task(
                    world.until(lambda name=sandbox: bool(world.of("monitor.intervention_decided", name)))
                )
    rules = rule_set_of(world.herd.settings(Principal.MONITOR))
    report = replay(await stored_lines(world), rules)
    assert decided(report.interventions) == decided(report.recorded_interventions)
    assert {one.sandbox for one in report.interventions} == {*at_fault}
    expected = {(known[name]["sandbox"], rule) for name in SESSIONS for rule in known[name]["expect"]}
    assert {(sandbox, rule) for sandbox, rule, _ in decided(report.interventions)} == expected
