"""The memory of the relay while one sandbox has published far more than it can process.

`tests/unit/bus/test_bus_held_messages.py` shows in `make test` that a full queue pulls no more.
"""

import os
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from sandherd.contracts.envelope import wrap
from sandherd.contracts.events.tools import AgentApprovalRequested
from sandherd.contracts.subjects import Principal, event_subject
from sandherd.processes import memory_of
from tests.polling import eventually

World = Any
EVENTS = 100_000
ROUNDS = 20
GROWTH = 256 * 1024 * 1024
"""Pending messages take at most 128 MiB, and those that were pulled with the last of them half of that."""


async def publish_requests(world: World, sandbox: str) -> None:
    """Publish requests for approval as fast as the broker stores them."""
    subject = event_subject("default", sandbox, AgentApprovalRequested.type)
    async with world.herd.bus(Principal.WORKER, project="default", sandbox=sandbox) as bus:
        for number in range(EVENTS):
            data = AgentApprovalRequested(approval_id=f"a-{number}", tool="Bash", input={"command": "x" * 1000})
            event = wrap(
                data,
                data.type,
                source=f"/sandherd/sandbox/{sandbox}",
                sequence=number + 1,
                project="default",
                subject=sandbox,
                sandboxid=sandbox,
                time=datetime.now(UTC),
            )
            await bus.client.publish(subject, event.to_json(), headers={"Nats-Msg-Id": str(event.id)})
            if number % 500 == 0:
                await bus.client.flush()
        await bus.client.flush()


@pytest.mark.long  # 100,000 events take a minute; the unit test above tests the claim cheaply
async def test_backlog_of_one_sandbox_takes_little_memory(world: World) -> None:
    """While 100,000 events of one sandbox are pending, the relay's memory is limited, and another sandbox is served."""
    for sandbox in ("sbx-mad", "sbx-1"):
        await world.record(sandbox)
    await publish_requests(world, "sbx-mad")

    state = (await world.reader.js.stream_info("EVENTS")).state
    assert state.messages >= EVENTS
    before, peak = memory_of([os.getpid()]), 0

    def is_served(approval: str) -> bool:
        nonlocal peak
        peak = max(peak, memory_of([os.getpid()]))
        return "requested" in world.approvals[approval]

    async with world.relay(open_approvals=3).running():
        for number in range(ROUNDS):
            await world.ask("sbx-1", f"mine-{number}")
            await eventually(partial(is_served, f"mine-{number}"))
            await world.decide("sbx-1", f"mine-{number}")
    assert peak - before < GROWTH
