"""A worker sends headers that the broker sets itself: the broker's come last, as docs/wire.md states."""

from typing import Any

import pytest

from sandherd.contracts.subjects import OUTPUT, Principal, event_subject
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE

EVENT = event_subject("p1", "sbx-1", "agent.message")
FALSE = {
    "Nats-Stream": "TASKS",
    "Nats-Subject": "sandherd.v1.event.p2.sbx-2.agent.message",
    "Nats-Sequence": "999",
    "Nats-Time-Stamp": "1999-01-01T00:00:00Z",
    "Nats-Last-Sequence": "998",
}


def pairs(header: bytes) -> list[tuple[str, str]]:
    """The headers in the order of the broker."""
    lines = header.decode().split("\r\n")[1:]
    return [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines) if name]


@pytest.mark.parametrize("subject", [EVENT, OUTPUT.fill(project="p1", sandbox="sbx-1")])
async def test_last_header_of_a_name_is_the_brokers(
    herd: Broker, monkeypatch: pytest.MonkeyPatch, subject: str
) -> None:
    """Each false header is delivered, but before the broker's; nats-py returns the broker's."""
    async with (
        herd.bus(Principal.CLIENT, project="p1") as bus,
        herd.bus(Principal.WORKER, project="p1", sandbox="sbx-1") as worker,
    ):
        received: list[bytes] = []
        read = bus.client._process_headers

        async def recorded(headers: bytes) -> Any:
            received.append(headers)
            return await read(headers)

        monkeypatch.setattr(bus.client, "_process_headers", recorded)
        subscription = await bus.client.subscribe(subject)
        await bus.flush(timeout=PATIENCE)
        stored = await worker.publish(subject, b"{}", msg_id="one", headers=FALSE)
        message = await subscription.next_msg(PATIENCE)
    found = pairs(received[-1])
    for name, false in FALSE.items():
        values = [value for given, value in found if given == name]
        assert (values[0], len(values)) == (false, 2)
        assert (message.headers or {})[name] == values[-1] != false
    assert (message.headers or {})["Nats-Sequence"] == str(stored.seq)
