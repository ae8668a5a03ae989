"""Events through the gateway: the latency for a client of Server-Sent Events, and the cost of 1,000 clients.

The gateway is a separate process. The latency is measured from the publish, so it includes the time that the broker
takes to accept an event; the baseline is a plain subscriber of the broker in the same run. The memory of clients is
compared with that of a bare uvicorn application with the same number of open responses. For the reconnect all clients
connect at once, each from its own position, while events are published; a missing or duplicate event is an error.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Final

import psutil
from nats.aio.msg import Msg

from gateway.stream_reader import subject_of
from sandherd.bus.connection import Bus
from sandherd.contracts.envelope import wrap
from sandherd.contracts.events.conversation import AgentMessage
from sandherd.contracts.records import SharedAccessToken
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.bench.ingest import free_port, listening, running
from tests.bench.latency import Latency, latency_of
from tests.bench.recorder import Recorder

PROJECT: Final = "default"
SANDBOX: Final = "sbx-1"
TOKEN: Final = f"shd_{PROJECT}_{'t' * 43}"
RATE: Final = 200
EVENTS: Final = 1000
CLIENTS: Final = 1000
_SHARED: Final = 50
"""Events that are published while all clients reconnect."""
_WITHIN: Final = 120.0
_SETTLED: Final = 2.0

BARE: Final = """
import sys, uvicorn, asyncio

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    await send({"type": "http.response.body", "body": b": open\\n\\n", "more_body": scope["path"] != "/"})
    if scope["path"] != "/":
        await asyncio.Event().wait()

uvicorn.run(app, port=int(sys.argv[1]), http="h11", ws="none", lifespan="off", log_level="critical")
"""


class Publisher:
    """A worker that publishes numbered messages, and the time at which it began each."""

    def __init__(self, bus: Bus) -> None:
        self.begun: dict[int, float] = {}
        self._bus = bus

    async def publish(self) -> None:
        """Publish the next message; it returns when the broker has accepted it."""
        number = len(self.begun) + 1
        content = f"{number} {'x' * 400}"
        event = wrap(
            AgentMessage(content=content, content_length=len(content)),
            AgentMessage.type,
            source=f"/sandherd/sandbox/{SANDBOX}",
            sequence=number,
            project=PROJECT,
            subject=SANDBOX,
            time=datetime.now(UTC),
            taskid="task-1",
            sandboxid=SANDBOX,
        )
        self.begun[number] = time.perf_counter()
        await self._bus.publish_event(event)

    async def publish_steadily(self, count: int, rate: float) -> None:
        """Publish at a fixed rate, which does not depend on acknowledgements."""
        begun, publishing = time.perf_counter(), []
        for place in range(count):
            await asyncio.sleep(max(0.0, begun + place / rate - time.perf_counter()))
            publishing.append(asyncio.create_task(self.publish()))
        await asyncio.gather(*publishing)


@dataclass
class Client:
    """A client of the live stream: the numbers of the messages that it has received, and its position."""

    port: int
    position: str = ""
    numbers: list[int] = field(default_factory=list)
    times: dict[int, float] = field(default_factory=dict)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, last: int) -> None:
        """Read until the message with this number. Raises `RuntimeError` if the stream ends before."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        try:
            head = f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\nLast-Event-ID: {self.position}\r\n"
            without = head if self.position else head.replace("Last-Event-ID: \r\n", "")
            writer.write(f"GET /api/v1/events/stream HTTP/1.1\r\n{without}\r\n".encode())
            status = await reader.readline()
            if b" 200 " not in status:
                raise RuntimeError(f"the stream was refused: {status!r} {await reader.read(800)!r}")
            while not self.numbers or self.numbers[-1] < last:
                self._take(await reader.readline())
        finally:
            writer.transport.abort()

    def _take(self, line: bytes) -> None:
        if not line:
            raise RuntimeError("the stream has ended")
        if line.startswith(b"id: "):
            self.position = line[4:].decode().strip()
            self.opened.set()
        elif line.startswith(b"data: ") and b'"content"' in line:
            number = int(json.loads(line[6:])["data"]["content"].partition(" ")[0])
            self.numbers.append(number)
            self.times.setdefault(number, time.perf_counter())


@dataclass
class Bench:
    """A broker, a gateway in a process of its own, and a publisher."""

    port: int
    process: psutil.Process
    publisher: Publisher
    subscriber: Bus

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator["Bench"]:
        """Start them; they end with the context."""
        with tempfile.TemporaryDirectory(prefix="bench-gateway-") as directory:
            async with Broker(Path(directory)) as broker:
                await _store_token(broker)
                port = await free_port()
                async with (
                    running(["-m", "gateway.main"], _environment(broker, port)) as process,
                    broker.bus(Principal.WORKER, sandbox=SANDBOX) as worker,
                    broker.bus(Principal.CLIENT) as client,
                ):
                    await listening(f"http://127.0.0.1:{port}/api/v1/tasks")
                    yield cls(port, psutil.Process(process.pid), Publisher(worker), client)

    async def latency(self) -> tuple[Latency, Latency]:
        """Measure the latency to a client of the gateway, and to a plain subscriber."""
        first = len(self.publisher.begun) + 1
        last = first + EVENTS - 1
        client, plain = Client(self.port), dict[int, float]()

        async def on_message(message: Msg) -> None:
            plain[int(json.loads(message.data)["data"]["content"].partition(" ")[0])] = time.perf_counter()

        subscription = await self.subscriber.client.subscribe(subject_of(PROJECT, None), cb=on_message)
        await self.subscriber.flush()
        async with asyncio.timeout(_WITHIN), asyncio.TaskGroup() as group:
            group.create_task(client.read(last))
            await client.opened.wait()
            await self.publisher.publish_steadily(EVENTS, RATE)
            while len(plain) < EVENTS:  # the callback of the subscription fills it
                await asyncio.sleep(0.01)
        await subscription.unsubscribe()
        return _latency(self.publisher.begun, client.times, first), _latency(self.publisher.begun, plain, first)

    async def clients(self) -> tuple[float, float]:
        """The MiB that this number of clients adds to the gateway's memory, and the seconds until all reconnected."""
        before = _memory(self.process)
        clients = [Client(self.port) for _ in range(CLIENTS)]
        first = len(self.publisher.begun) + 1
        await self._read_all(clients, RATE // 4, settle=_SETTLED)
        after = self._held
        begun = time.perf_counter()
        await self._read_all(clients, _SHARED)
        seconds = time.perf_counter() - begun
        expected = list(range(first, len(self.publisher.begun) + 1))
        wrong = sum(client.numbers != expected for client in clients)
        if wrong:
            raise RuntimeError(f"{wrong} clients have lost or doubled events")
        return after - before, seconds

    async def _read_all(self, clients: list[Client], events: int, settle: float = 0) -> None:
        """Connect all at once while events are published. `_held` is the memory while all are connected."""
        last = len(self.publisher.begun) + events
        for client in clients:
            client.opened.clear()
        async with asyncio.timeout(_WITHIN), asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(client.read(last))
            if not clients[0].position:
                await asyncio.gather(*[client.opened.wait() for client in clients])
            for _ in range(events - 1):
                await self.publisher.publish()
            await asyncio.gather(*[client.opened.wait() for client in clients])
            await asyncio.sleep(settle)  # until its memory has settled
            self._held = _memory(self.process)
            await self.publisher.publish()


async def measure(recorder: Recorder) -> None:
    """The latency beside a plain subscriber, then the clients beside a bare server."""
    async with Bench.open() as bench:
        for _ in recorder.each("gateway.event"):
            recorder.add("gateway.event", *await bench.latency())
    for run in recorder.each("gateway.clients"):
        async with Bench.open() as bench:  # a process that has had clients has already allocated their memory
            await bench.latency()
            memory, seconds = await bench.clients()
        recorder.add("gateway.clients", memory, await bare_memory())
        recorder.begin("gateway.reconnect", run)
        recorder.add("gateway.reconnect", seconds)


async def bare_memory() -> float:
    """The MiB that the same number of open responses adds to a bare uvicorn application."""
    port = await free_port()
    async with running(["-c", BARE, str(port)], {}) as process:
        await listening(f"http://127.0.0.1:{port}/")
        server = psutil.Process(process.pid)
        before = _memory(server)
        connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CLIENTS)]
        for _, writer in connections:
            writer.write(b"GET /open HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for reader, _ in connections:
            await reader.readuntil(b": open\n\n")
        after = _memory(server)
        for _, writer in connections:
            writer.transport.abort()
        process.kill()  # its responses have no end
        return after - before


def _latency(begun: dict[int, float], ended: dict[int, float], first: int) -> Latency:
    return latency_of([ended[number] - moment for number, moment in begun.items() if number >= first])


def _memory(process: psutil.Process) -> float:
    return float(process.memory_full_info().uss) / 1024 / 1024


def _environment(broker: Broker, port: int) -> dict[str, str]:
    settings = broker.settings(Principal.GATEWAY)
    return {
        "NATS_URL": broker.url,
        "SANDHERD_CREDENTIALS": str(settings.credentials),
        "SANDHERD_GATEWAY_PORT": str(port),
        "SANDHERD_GATEWAY_REQUESTS_PER_SECOND": "100000",
        "SANDHERD_LOG_LEVEL": "error",
    }


async def _store_token(broker: Broker) -> None:
    expires = datetime.now(UTC) + timedelta(hours=1)
    record = SharedAccessToken(project=PROJECT, token="reader", role="read", expires_at=expires)
    key = f"$KV.tokens.{PROJECT}.{sha256(TOKEN.encode()).hexdigest()}"
    async with broker.bus(Principal.SPAWNER) as bus:
        await bus.js.publish(key, record.model_dump_json().encode())
