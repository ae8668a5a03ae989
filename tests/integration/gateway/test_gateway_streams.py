"""Live streams on a real broker: restarts lose and duplicate nothing, and no client delays another."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import pytest

from gateway import event_stream, live_feeds
from sandherd.bus.connection import Bus
from sandherd.contracts.envelope import wrap
from sandherd.contracts.events.conversation import AgentMessage
from sandherd.contracts.records import SharedAccessToken
from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from sandherd.stack.nats import free_port
from tests.integration.gateway.conftest import PROJECT, Api, Messages, gateway_of, served
from tests.patience import PATIENCE
from tests.polling import eventually

SANDBOX: Final = "sbx-1"
TOKEN: Final = f"shd_{PROJECT}_{'t' * 43}"


class Talker:
    """A worker that publishes numbered messages."""

    def __init__(self, bus: Bus, sandbox: str = SANDBOX, project: str = PROJECT) -> None:
        self.published = 0
        self._bus = bus
        self._sandbox = sandbox
        self._project = project

    async def publish_numbers(self, count: int, text: str = "") -> None:
        """Publish the next messages; each is stored when this returns."""
        for _ in range(count):
            self.published += 1
            content = f"{self.published} {text}"
            event = wrap(
                AgentMessage(content=content, content_length=len(content)),
                AgentMessage.type,
                source=f"/sandherd/sandbox/{self._sandbox}",
                sequence=self.published,
                project=self._project,
                subject=self._sandbox,
                time=datetime.now(UTC),
                taskid="task-1",
                sandboxid=self._sandbox,
            )
            await self._bus.publish_event(event)


@pytest.fixture
async def talker(herd: Broker) -> AsyncIterator[Talker]:
    async with herd.bus(Principal.WORKER, project=PROJECT, sandbox=SANDBOX) as bus:
        yield Talker(bus)


@pytest.fixture
async def port_file(herd: Broker, tmp_path: Path) -> Path:
    """The file where gateways write their port; the token exists.

    Another program could take a port that the kernel assigns, while no gateway listens on it.
    """
    await store_token(herd, datetime.now(UTC) + timedelta(hours=1))
    file = tmp_path / "api.port"
    file.write_text(str(free_port()))
    return file


async def store_token(herd: Broker, expires_at: datetime) -> None:
    record = SharedAccessToken(project=PROJECT, token="reader", role="read", expires_at=expires_at)
    key = f"$KV.tokens.{PROJECT}.{sha256(TOKEN.encode()).hexdigest()}"
    async with herd.bus(Principal.SPAWNER) as bus:
        await bus.js.publish(key, record.model_dump_json().encode())


@asynccontextmanager
async def gateway(herd: Broker, http: aiohttp.ClientSession, port_file: Path) -> AsyncIterator[Api]:
    async with gateway_of(herd, gateway_port_file=port_file).running() as service:
        await eventually(lambda: not service.health.problems(), "the gateway is ready")
        yield Api(await served(port_file), http, TOKEN)


async def numbers(messages: Messages, last: int) -> list[int]:
    """The numbers of the messages up to the last one."""
    found: list[int] = []
    async with asyncio.timeout(PATIENCE):
        while not found or found[-1] < last:
            kind, _, event = await messages.next()
            if kind == AgentMessage.type:
                found.append(int(event["data"]["content"].partition(" ")[0]))
    return found


async def test_restarts_lose_and_double_nothing(
    herd: Broker, http: aiohttp.ClientSession, port_file: Path, talker: Talker
) -> None:
    """An open stream survives a restart of the broker; after one of the gateway a client continues at its position.

    Stored events precede live ones, and a client has to remember only the id of the last message.
    """
    got: list[int] = []
    async with gateway(herd, http, port_file) as api:
        async with api.stream("/api/v1/events/stream") as stream:
            assert (await stream.next())[0] == "ready"
            begin = stream.last
            await talker.publish_numbers(300)
            got += await numbers(stream, 300)
            await herd.nats.restart()
            await talker.publish_numbers(50)
            got += await numbers(stream, 350)
            position = stream.last
        url = api.url
    with suppress(aiohttp.ClientError):
        await Api(url, http, TOKEN).call("GET", "/api/v1/tasks")
    await talker.publish_numbers(50)
    async with gateway(herd, http, port_file) as api:
        assert api.url == url
        async with api.stream(f"/api/v1/events/stream?after={position}") as stream:
            await talker.publish_numbers(10)
            got += await numbers(stream, 410)
        assert got == list(range(1, 411))
        async with api.stream("/api/v1/events/stream", after=begin) as again:
            saying = asyncio.create_task(talker.publish_numbers(200))
            assert await numbers(again, 610) == list(range(1, 611))
            await saying
        for wrong in ("1-1", f"{position.partition('-')[0]}-999999", "x"):
            async with api.stream("/api/v1/events/stream", after=wrong) as resynced:
                kind, identifier, data = await resynced.next()
                assert (kind, bool(data["reason"])) == ("resync", True)
                assert identifier.startswith(position.partition("-")[0])


async def test_slow_client_is_disconnected_and_delays_no_other(
    herd: Broker, http: aiohttp.ClientSession, port_file: Path, talker: Talker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that reads nothing is disconnected when its queue is full; another one still gets every event."""
    monkeypatch.setattr(live_feeds.LiveFeeds.__init__, "__defaults__", (20,))
    async with gateway(herd, http, port_file) as api, api.stream("/api/v1/events/stream") as stream:
        deaf = await _unread_stream(api)
        received: list[int] = []
        while talker.published < 150:
            await talker.publish_numbers(1, "x" * 60_000)
            received += await numbers(stream, talker.published)  # so its own queue has at most one event
        assert received == list(range(1, 151))
        deaf.setblocking(False)
        await eventually(lambda: _is_closed(deaf), "the slow client is disconnected")
        deaf.close()


async def test_client_that_never_reads_is_disconnected_also_before_live_events(
    herd: Broker, http: aiohttp.ClientSession, port_file: Path, talker: Talker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored events that are not read also use memory; such a stream ends too when its token ends."""
    await talker.publish_numbers(100, "x" * 60_000)
    defaults = event_stream.EventStreams.__init__
    async with gateway(herd, http, port_file) as api, api.stream("/api/v1/events/stream") as stream:
        await stream.next()
        begin = f"{stream.last.partition('-')[0]}-0"
    monkeypatch.setattr(defaults, "__defaults__", (0.1, 0.5))
    async with gateway_of(herd, gateway_port_file=port_file).running() as service:
        with await _unread_stream(Api(await _next_address(service, port_file), http, TOKEN), begin):
            await eventually(lambda: _streams(service) == (0, 1), "the client that takes nothing is disconnected")
    monkeypatch.setattr(defaults, "__defaults__", (0.1, 3600.0))
    monkeypatch.setattr(event_stream, "_CLOSING_SECONDS", 0.1)
    async with gateway_of(herd, gateway_port_file=port_file).running() as service:
        with await _unread_stream(Api(await _next_address(service, port_file), http, TOKEN), begin):
            assert _streams(service) == (1, 0)
            await store_token(herd, datetime.now(UTC))
            await eventually(lambda: _streams(service) == (0, 0), "the client without a valid token is disconnected")


def _streams(service: Service) -> tuple[float | None, float | None]:
    """The numbers of open streams, and of those that were ended because their clients were slow."""
    names = ("sandherd_gateway_streams", "sandherd_gateway_streams_dropped_total")
    open_now, dropped = (service.registry.get_sample_value(name) or 0 for name in names)
    return open_now, dropped


async def _next_address(service: Service, port_file: Path) -> str:
    """The address of a gateway that is ready, after an earlier one has ended."""
    await eventually(lambda: not service.health.problems(), "the gateway is ready")
    return await served(port_file)


async def _unread_stream(api: Api, after: str = "") -> socket.socket:
    """A client whose stream has begun, and which reads nothing more."""
    place = urlsplit(api.url)
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.connect((place.hostname, place.port))
    head = f"Host: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    deaf.sendall(f"GET /api/v1/events/stream?after={after} HTTP/1.1\r\n{head}".encode())
    assert b"200" in await asyncio.to_thread(deaf.recv, 64)
    return deaf


def _is_closed(connection: socket.socket) -> bool:
    try:
        while connection.recv(65_536):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


async def test_expired_token_ends_its_open_stream(
    herd: Broker, http: aiohttp.ClientSession, port_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream checks its token with each heartbeat, and ends; so does the token at the next request."""
    monkeypatch.setattr(event_stream.EventStreams.__init__, "__defaults__", (0.05, event_stream.STALL))
    async with gateway(herd, http, port_file) as api, asyncio.timeout(PATIENCE):
        async with api.stream("/api/v1/events/stream") as stream:
            assert (await stream.next())[0] == "ready"
            line = b""
            while line != b": heartbeat\n":
                line = await stream.response.content.readline()
            await store_token(herd, datetime.now(UTC))
            with pytest.raises(EOFError):
                await stream.next()
        status, body, _ = await api.call("GET", "/api/v1/tasks")
        assert (status, "expired" in body["detail"]) == (401, True)
