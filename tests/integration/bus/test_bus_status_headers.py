"""The headers of a publisher are content: none is read as a status of the broker."""

import asyncio
from collections.abc import Mapping

import pytest
from nats.aio.msg import Msg

from sandherd.bus.consumers.pull import Puller
from sandherd.contracts.subjects import Principal, event_subject
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE

WINDOW = 4
STATUSES: tuple[Mapping[str, str], ...] = (
    {"Status": "100"},
    {"Status": "100", "Description": "Idle Heartbeat"},
    {"Status": "404"},
    {"Status": "408", "Nats-Pending-Messages": "-1000000000", "Nats-Pending-Bytes": "0"},
    {"Status": "408", "Nats-Pending-Messages": "many"},
    {"Status": "409", "Description": "Consumer Deleted"},
    {"Status": "409", "Description": "Message Size Exceeds MaxBytes", "Nats-Pending-Messages": "7"},
    {"Status": "503"},
    {"Status": ""},
)


@pytest.mark.parametrize(
    ("service", "consumer", "headers"),
    [
        (Principal.EVENT_INGEST, "event-ingest", True),
        (Principal.EVENT_INGEST, "event-ingest", False),
        (Principal.SPAWNER, "spawner-agents", True),
    ],
)
async def test_message_with_a_status_header_is_a_message(
    herd: Broker, service: Principal, consumer: str, headers: bool
) -> None:
    """More such messages than the window holds arrive one by one, and so does the message after them."""
    subject = event_subject("p1", "sbx-1", "agent.started")
    async with herd.bus(Principal.WORKER, project="p1", sandbox="sbx-1") as worker, herd.bus(service) as bus:
        for status in STATUSES * 2:
            await worker.client.publish(subject, b"", headers=dict(status))
        await worker.client.publish(subject, b"{}")
        await worker.flush()
        puller = Puller(bus, "EVENTS", consumer, WINDOW, headers=headers)
        await puller.bind()
        found: list[Msg] = []
        async with asyncio.timeout(PATIENCE):
            while len(found) < 2 * len(STATUSES) + 1:
                for message in await puller.next_batch(WINDOW):
                    found.append(message)
                    await message.ack_sync(timeout=PATIENCE)
        expected = [dict(status) if headers else {} for status in STATUSES * 2]
        assert [message.headers or {} for message in found[:-1]] == expected
        assert found[-1].data == b"{}"
        assert puller.problem() is None
        await puller.unbind()
