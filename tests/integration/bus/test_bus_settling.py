"""What is settled has reached the broker."""

from typing import Any

import pytest

from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE

SUBJECT = "sandherd.v1.event.default.sbx-one.sandbox.running"


async def test_the_last_ping_follows_what_was_said_before(herd: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `settle` the broker has the subscription: the PING that was answered last was written behind it.

    `nats-py`'s own `flush` does not promise that: its PING overtakes whatever is not written yet.
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
        await bus.settle()
    said = b"".join(written).decode()
    assert 0 < said.index(f"SUB {SUBJECT}") < said.rindex("PING")


async def test_what_is_subscribed_before_hears_what_is_said_after(herd: Broker) -> None:
    """After `settle` the very next message of another connection is heard."""
    async with herd.bus(Principal.CLIENT) as listener, herd.bus(Principal.SPAWNER) as speaker:
        heard = await listener.client.subscribe(SUBJECT)
        await listener.settle()
        await speaker.publish(SUBJECT, b"{}", msg_id="one")
        assert (await heard.next_msg(timeout=PATIENCE)).data == b"{}"
