"""A whole herd with a gateway, on a real broker and a real database, and clients of its API."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.main import compose
from sandherd.client import Context, Herd, HerdError
from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from sandherd.telemetry import logs
from tests.integration.operating.herds import running
from tests.polling import eventually

PROJECT = "p1"
OTHER = "p2"


@dataclass
class Api:
    """The API of a gateway, as the holder of a token uses it."""

    url: str
    session: aiohttp.ClientSession
    token: str

    async def call(self, method: str, path: str, **options: Any) -> tuple[int, Any, Any]:
        """Send a request; returns the status, the document and the headers of the response."""
        headers = {"Authorization": f"Bearer {self.token}", **options.pop("headers", {})}
        async with self.session.request(method, f"{self.url}{path}", headers=headers, **options) as response:
            text = await response.text()
            return response.status, json.loads(text) if text.startswith(("{", "[")) else text, response.headers

    @asynccontextmanager
    async def stream(self, path: str, after: str | None = None) -> AsyncIterator["Messages"]:
        """Open a stream of events."""
        headers = {"Authorization": f"Bearer {self.token}", **({"Last-Event-ID": after} if after else {})}
        timeout = aiohttp.ClientTimeout(total=None)
        async with self.session.get(f"{self.url}{path}", headers=headers, timeout=timeout) as response:
            assert response.status == 200, await response.text()
            yield Messages(response)


class Messages:
    """The messages of a stream, in order."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.last = ""

    async def next(self) -> tuple[str, str, Any]:
        """The type, position and document of the next message; comments are skipped."""
        fields: dict[str, str] = {}
        while True:
            line = (await self.response.content.readline()).decode()
            if not line:
                raise EOFError
            if line == "\n" and "data" in fields:
                self.last = fields["id"]
                return fields["event"], fields["id"], json.loads(fields["data"])
            name, _, value = line.rstrip("\n").partition(": ")
            fields[name] = value


def herd_context(broker: Broker, project: str = PROJECT) -> Context:
    return Context(
        nats_url=broker.url,
        credentials=broker.credentials(Principal.CLIENT, project=project),
        project=project,
        home=broker.home / "nowhere",
    )


def gateway_of(broker: Broker, **values: Any) -> Service:
    return compose(broker.settings(Principal.GATEWAY, **values))


async def address(port_file: Path) -> str:
    return f"http://127.0.0.1:{port_file.read_text()}"


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logs.configure("test", "warning")


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def client(herd: Broker) -> AsyncIterator[Herd]:
    async with Herd.connect(herd_context(herd)) as connected:
        yield connected


@pytest.fixture
async def services(herd: Broker, postgres: str, tmp_path: Path) -> AsyncIterator[dict[Principal, Service]]:
    """The gateway, and the services that it uses."""
    port_file = tmp_path / "api.port"
    async with running(herd, postgres, tmp_path / "home", isolation="none", gateway_port_file=port_file) as found:
        yield found


@pytest.fixture
async def api(services: dict[Principal, Service], client: Herd, http: aiohttp.ClientSession, tmp_path: Path) -> Api:
    """The API, with a token that permits everything in its project."""
    await eventually(lambda: responds(client), "the spawner responds")
    new = await client.create_token("all", "operate")
    return Api(await served(tmp_path / "api.port"), http, new.text)


async def responds(client: Herd) -> bool:
    """Whether the spawner has read its records."""
    try:
        await client.tokens()
    except HerdError:
        return False
    return True


async def served(port_file: Path) -> str:
    """The address of the API, once it is served."""
    await eventually(port_file.exists, "the API is served")
    return await address(port_file)
