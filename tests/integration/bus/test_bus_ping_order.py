"""The broker has received a subscription that is settled."""

from typing import Any

import pytest

from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE

SUBJECT = "sandherd.v1.event.default.sbx-one.sandbox.running"


async def test_settle_sends_the_ping_after_earlier_messages(herd: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `settle` the broker has the subscription: the acknowledged PING was written after it.

    `nats-py`'s own `flush` does not ensure that: its PING overtakes what is not written yet.
    """
    async with herd.bus(Principal.CLIENT) as bus:
        written: list[bytes] = []
        transport: Any = bus.client._transport
        write, writelines = transport.write, transport.writelines

        def on_write(data: bytes) -> None:
            written.append(data)
            write(data)

        def on_writelines(lines: list[bytes]) -> None:
            written.extend(lines)
            writelines(lines)

        monkeypatch.setattr(transport, "write", on_write)
        monkeypatch.setattr(transport, "writelines", on_writelines)
        await bus.client.subscribe(SUBJECT)
        await bus.flush()
    output = b"".join(written).decode()
    assert 0 < output.index(f"SUB {SUBJECT}") < output.rindex("PING")


async def test_settled_subscription_receives_the_next_message(herd: Broker) -> None:
    """After `settle` the next message of another connection is received."""
    async with herd.bus(Principal.CLIENT) as listener, herd.bus(Principal.SPAWNER) as publisher:
        subscription = await listener.client.subscribe(SUBJECT)
        await listener.flush()
        await publisher.publish(SUBJECT, b"{}", msg_id="one")
        assert (await subscription.next_msg(timeout=PATIENCE)).data == b"{}"
