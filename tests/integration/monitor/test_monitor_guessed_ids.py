"""A client computes the ids of the monitor's commands and publishes its own commands with them first."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandherd.bus.publisher import EventPublisher
from sandherd.contracts.commands import CancelTask, TerminateSandbox
from sandherd.contracts.events.monitor import MonitorRuleUnmuted
from sandherd.contracts.names import DerivedIds, derived_uuid
from sandherd.contracts.subjects import Principal, command_subject

pytestmark = pytest.mark.own_broker

World = Any
NOTHING = json.dumps({"data": {}}).encode()
MARGIN = timedelta(milliseconds=20)


@pytest.mark.own_broker
async def test_client_cannot_suppress_a_command_of_the_monitor(world: World) -> None:
    """The command is published although the broker looks for duplicates in the one stream of all projects."""
    async with world.monitor(dead_after=1).running(), world.herd.bus(Principal.CLIENT, project="other") as other:
        before = datetime.now(UTC) - MARGIN
        await world.born("sbx-dead")
        span = (datetime.now(UTC) + MARGIN - before) // timedelta(milliseconds=1)
        facts = (TerminateSandbox.type, "default", "sbx-dead", "dead", 1)
        for at in (before + timedelta(milliseconds=number) for number in range(span + 1)):
            for guess in (derived_uuid(at, *facts), DerivedIds(b"").derive(at, *facts)):
                await other.publish(command_subject(CancelTask.type, "other"), NOTHING, msg_id=str(guess))
        await world.until(lambda: world.of("monitor.dead_found", "sbx-dead"))
        await world.born("sbx-later")
        await world.until(lambda: world.requested("sbx-later"))
    assert world.requested("sbx-dead") == ["dead"]


async def test_of_two_events_under_one_name_the_first_is_stored(world: World) -> None:
    """The other publisher gets an error, and continues as a new source, so that none of its events is missing."""
    async with world.herd.bus(Principal.MONITOR) as bus:
        new, old = (EventPublisher(bus, Principal.MONITOR) for _ in range(2))
        name = bus.ids.derive(datetime.now(UTC), "decision", 1)
        about: dict[str, Any] = {"project": "default", "entity": "sbx-1"}
        first = await new.publish_first(MonitorRuleUnmuted(rule="loop", unmuted_by="a"), name, **about)
        second = await old.publish_first(MonitorRuleUnmuted(rule="loop", unmuted_by="b"), name, **about)
        last = await old.publish(MonitorRuleUnmuted(rule="cycle", unmuted_by="b"), **about)
        assert first is not None
        await world.until(lambda: len(world.published) == 2)
    assert second is None
    stored = [(one["id"], one["source"], one["sequence"]) for one in world.published]
    assert stored == [(str(one.id), one.source, 1) for one in (first, last)]
    assert len({source for _, source, _ in stored}) == 2
