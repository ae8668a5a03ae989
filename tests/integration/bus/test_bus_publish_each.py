"""Many acknowledgements in one write, at a real broker: each is a separate message."""

import asyncio
from unittest.mock import patch

import nats.errors
import pytest

from sandherd.bus.consumers.consumer import DONE, Delivery, Outcome, consume_batches
from sandherd.bus.health import Health
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE

CONSUMER = "spawner-commands"
SUBJECT = "sandherd.v1.command.spawner.submit_task.p1"


async def test_closed_connection_is_an_error(herd: Broker) -> None:
    """The error is that of `publish`, and nothing waits to be written."""
    async with herd.bus(Principal.SPAWNER) as bus:
        await bus.client.close()
        with pytest.raises(nats.errors.ConnectionClosedError):
            await bus.client.publish_each(["$JS.ACK.1", "$JS.ACK.2"], b"+ACK")
        assert not bus.client.pending_data_size


async def test_batch_is_acknowledged_in_one_write(herd: Broker) -> None:
    """Of 300 messages handled together each is acknowledged, and the client is called once for all."""
    handled: list[int] = []

    async def handle(deliveries: list[Delivery]) -> list[Outcome]:
        handled.append(len(deliveries))
        return [DONE] * len(deliveries)

    async with herd.bus(Principal.CLIENT, project="p1") as client:
        for number in range(300):
            await client.publish(SUBJECT, b"{}", msg_id=f"id-{number}")
    async with herd.bus(Principal.SPAWNER) as bus:
        with patch.object(bus.client, "publish_each", wraps=bus.client.publish_each) as writing:
            task = asyncio.create_task(consume_batches(bus, CONSUMER, handle, health=Health(), batch=300))
            async with asyncio.timeout(PATIENCE):
                while (info := await bus.js.consumer_info("COMMANDS", CONSUMER)).num_ack_pending or info.num_pending:
                    await asyncio.sleep(0.01)
            task.cancel()
            acknowledging = [call for call in writing.await_args_list if call.args[1] == b"+ACK"]
    assert sum(handled) == 300
    assert sum(len(call.args[0]) for call in acknowledging) == 300
    assert len(acknowledging) == len(handled)
