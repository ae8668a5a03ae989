"""Attacks by a client that computes the ids of the monitor's commands and publishes its own under them first."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from sandherd.contracts.commands import CancelTask, TerminateSandbox
from sandherd.contracts.names import DerivedIds, derived_uuid
from sandherd.contracts.subjects import Principal, command_subject

World = Any
NOTHING = json.dumps({"data": {}}).encode()
MARGIN = timedelta(milliseconds=20)


async def test_client_cannot_suppress_a_command_of_the_monitor(world: World) -> None:
    """All commands are in one stream, in which the broker looks for duplicates, also of another project."""
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
        await world.until(lambda: world.asked("sbx-later"))
    assert world.asked("sbx-dead") == ["dead"]
