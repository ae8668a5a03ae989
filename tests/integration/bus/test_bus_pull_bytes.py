"""A backlog of large messages does not disconnect its reader. Until then pull requests had no limit in bytes.

nats-server closes a connection for which it holds more than 64 MiB. One sandbox, within its limits, could have
event-ingest disconnected, so that its messages were delivered again only after the time for their acknowledgement.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sandherd.bus.connection import Bus
from sandherd.bus.consumers.pull import Puller
from sandherd.contracts.streams import BY_CONSUMER
from sandherd.contracts.subjects import Principal, command_subject, event_subject
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE
from tests.polling import eventually

SIZE = 250_000
COUNT = 320
"""The number of messages, 80 MB in all: more than the broker holds for a connection."""
WINDOW = 2000

P = Principal


@asynccontextmanager
async def reading_paused(bus: Bus) -> AsyncIterator[None]:
    """Make the service busy: its connection receives only what the buffers of its socket hold."""
    transport = bus.client._transport._io_writer.transport  # type: ignore[union-attr]  # nats-py's own
    transport.pause_reading()
    try:
        yield
    finally:
        transport.resume_reading()


@pytest.mark.parametrize(
    ("publisher", "service", "consumer", "subject"),
    [
        (P.WORKER, P.EVENT_INGEST, "event-ingest", event_subject("p1", "sbx-1", "agent.message")),
        (P.CLIENT, P.SPAWNER, "spawner-commands", command_subject("spawner.submit_task", "p1")),
    ],
)
async def test_backlog_of_large_messages_does_not_disconnect_its_reader(
    herd: Broker, publisher: Principal, service: Principal, consumer: str, subject: str
) -> None:
    """A busy service gets all of the large messages, each once, over one connection."""
    stream = BY_CONSUMER[consumer].stream
    async with herd.bus(publisher, project="p1", sandbox="sbx-1") as bus:
        for number in range(COUNT):
            await bus.client.publish(subject, b"x" * SIZE, headers={"Nats-Msg-Id": f"large-{number}"})
        await bus.flush(timeout=PATIENCE)
    async with herd.bus(service) as bus, herd.provisioner() as jetstream:

        async def stored() -> bool:
            return (await jetstream.stream_info(stream)).state.messages == COUNT

        async def no_request_is_open() -> bool:
            found = await jetstream.consumer_info(stream, consumer)
            return bool(found.num_ack_pending) and not found.num_waiting

        await eventually(stored)
        puller = Puller(bus, stream, consumer, WINDOW, headers=service is not P.EVENT_INGEST)
        await puller.bind()
        await puller._request_more()
        await bus.flush(timeout=PATIENCE)
        async with reading_paused(bus):
            await eventually(no_request_is_open)
        found: set[int] = set()
        async with asyncio.timeout(PATIENCE):
            while len(found) < COUNT:
                found |= {message.metadata.sequence.stream for message in await puller.next_batch(WINDOW)}
        assert bus.reconnects == 0
        assert (await jetstream.consumer_info(stream, consumer)).num_redelivered == 0
        await puller.unbind()
