"""A worker publishes subjects and headers of any bytes: each is one message, and no service loses its connection."""

import asyncio
from typing import Any

import pytest
from nats.aio.msg import Msg

from sandherd.bus.connection import Bus
from sandherd.bus.consumers.pull import Puller
from sandherd.bus.direct_get import read_batch, read_stored
from sandherd.contracts.decoder import read_event
from sandherd.contracts.errors import ContractError
from sandherd.contracts.streams import live_subject
from sandherd.contracts.subjects import Principal, event_subject
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE

LAST = event_subject("p1", "sbx-1", "agent.message")
TOKENS = (b"\xff", b"\xc3", b"a\x0bb", b"a\x0cb", b"a\x1cb", b"\xc2\x85", b"\xe2\x80\xa8", b"\x00", b"\x0b5", b"\x0b")
"""Actions in an event's subject that are not UTF-8, or that some programs read as a space or a line end."""
HEADERS = (
    b"N",
    b"NATS/1.0",
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0 \xff\xff\xff\r\n\r\n",
    b"NATS/1.0 100 \xff\r\n\r\n",
    b"NATS/1.0 100 \xff\r\na: b\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"NATS/1.0 409 Consumer Deleted\r\n\r\n",
    b"NATS/1.0\r\n\xff: \xfe\r\n\r\n",
    b"NATS/1.0\r\na\r\n: b\r\n\r\n",
    b"\xff" * 2000,
    b"NATS/1.0\r\na: b\r\n\r\nc: d\r\n\r\n",
    b"NATS/1.0\r\na: b\r\n\r\n\r\n\r\n",
    b"NATS/1.0 404\r\n\r\nc: d\r\n\r\n",
    b"NATS/1.0 404 No\r\n\r\n\r\n\r\n",
    b"NATS/1.0 408",
    b"NATS/1.0 ",
    b"NATS/1.0\r\na: ",
    b"NATS/1.0\r\n c\r\n\td: e",
    b"NATS/1.0\r\n\r\n\r\n",
    b"NATS/1.0\n\n",
    b"NATS/1.0\ra: b\r\n\r\n",
    b"NATS/1.0\r\nNats-Sequence: x\r\nNats-Subject: y\r\nNats-Time-Stamp: z\r\nStatus: 404\r\n\r\n",
    b"NATS/1.0\r\n: \r\n\x00\r\n\r\n",
)
"""Blocks of headers; the broker does not store those that it refuses."""


async def send(worker: Bus) -> None:
    """Send all of them, and an ordinary message after them."""
    lines = [b"PUB " + LAST.removesuffix("message").encode() + token + b" 2\r\n{}\r\n" for token in TOKENS]
    blocks = [b" %d %d\r\n%s{}\r\n" % (len(block), len(block) + 2, block) for block in HEADERS]
    for line in [*lines, *(b"HPUB " + LAST.encode() + block for block in blocks)]:
        await worker.client._send_command(line)
    await worker.client._flush_pending()
    await worker.flush(timeout=PATIENCE)
    await worker.client.publish(LAST, b"last")
    await worker.flush(timeout=PATIENCE)


@pytest.mark.parametrize("headers", [True, False])
async def test_messages_of_any_bytes_are_pulled(herd: Broker, headers: bool) -> None:
    """Each stored message, and the one after them, is delivered once, over one connection."""
    async with (
        herd.bus(Principal.WORKER, project="p1", sandbox="sbx-1") as worker,
        herd.bus(Principal.EVENT_INGEST) as bus,
        herd.provisioner() as jetstream,
    ):
        await send(worker)
        count = (await jetstream.stream_info("EVENTS")).state.messages
        assert count > len(TOKENS)
        puller = Puller(bus, "EVENTS", "event-ingest", 4, headers=headers)
        await puller.bind()
        found: list[Msg] = []
        async with asyncio.timeout(PATIENCE):
            while len(found) < count:
                for message in await puller.next_batch(4):
                    found.append(message)
                    await message.ack_sync(timeout=PATIENCE)
        assert (found[-1].subject, found[-1].data) == (LAST, b"last")
        assert all(one.data.endswith(b"{}") for one in found[:-1])
        for one in found[: len(TOKENS)]:
            with pytest.raises(ContractError):
                read_event(one.subject, one.data)
        assert bus.reconnects == worker.reconnects == 0
        await puller.unbind()


async def test_messages_of_any_bytes_are_received_live(herd: Broker) -> None:
    """A service or a client that receives live events stays connected."""
    async with (
        herd.bus(Principal.WORKER, project="p1", sandbox="sbx-1") as worker,
        herd.bus(Principal.CLIENT, project="p1") as client,
    ):
        last: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def receive(message: Msg) -> None:
            if message.data == b"last":
                last.set_result(message)

        await client.client.subscribe("sandherd.v1.event.p1.>", cb=receive)
        await client.flush(timeout=PATIENCE)
        await send(worker)
        async with asyncio.timeout(PATIENCE):
            await last
        assert client.reconnects == worker.reconnects == 0


async def test_messages_of_any_bytes_are_read_from_the_stream(herd: Broker) -> None:
    """Services without a consumer read them, and so do those that receive what the stream republishes."""
    async with (
        herd.bus(Principal.WORKER, project="p1", sandbox="sbx-1") as worker,
        herd.bus(Principal.MONITOR) as monitor,
    ):
        live: asyncio.Queue[Msg] = asyncio.Queue()
        await monitor.client.subscribe(live_subject("sandherd.v1.event.>"), cb=live.put)
        await monitor.flush(timeout=PATIENCE)
        await send(worker)
        async with asyncio.timeout(PATIENCE):
            received = [await live.get()]
            while received[-1].data != b"last":
                received.append(await live.get())
        stored = await read_batch(
            monitor, "EVENTS", "sandherd.v1.event.>", first=1, limit=len(received) + 2, max_bytes=1_000_000
        )
        assert [one.sequence for one in stored] == list(range(1, len(stored) + 1))
        # The broker does not republish a subject with a form feed; a live reader fetches what is missing.
        expected = [one.sequence for one in stored if "\f" not in one.subject]
        assert [read_stored(one.headers or {}, one.data).sequence for one in received] == expected
        assert monitor.reconnects == 0
