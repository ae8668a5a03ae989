"""The limits of Compose's and the NATS chart's brokers for programs without a credential, in the running server.

Until then the limits were tested on the local stack only, and by their presence in a file.
"""

import asyncio
import json
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandherd.bus.identity.capacity import Capacity
from sandherd.bus.identity.deployment import Deployment
from sandherd.bus.identity.server_config import MAX_CLOSED_CONNECTIONS
from sandherd.stack.child_process import ChildCommand, ChildProcess
from sandherd.stack.nats import find_binary, free_port
from tests.integration.deploy.charts import ROOT, Json
from tests.patience import PATIENCE

MIB = 1024 * 1024
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: broker\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
)


def of_compose(folder: Path) -> Json:
    config: Json = json.loads((folder / "herd/nats/nats.conf").read_text())
    return config


def of_chart(folder: Path) -> Json:
    """The configuration that the chart makes of our values, with one server."""
    values = yaml.safe_load((ROOT / "deploy/nats/values.yaml").read_text())["config"]
    accounts: Json = json.loads((folder / "herd/nats/accounts.json").read_text())
    patches = {one["path"].removeprefix("/"): one["value"] for one in values["patch"]}
    resolver = {"dir": str(folder / "resolver"), **values["resolver"]["merge"]}
    websocket = {"no_tls": True, **values["websocket"].get("merge", {})}
    return {"websocket": websocket, "resolver": resolver, **accounts, **patches}


class Server:
    """A running server with the configuration of a deployment, on free ports and with its files in a folder."""

    def __init__(self, folder: Path, config: Json) -> None:
        self.port, self.websocket, self.monitor = free_port(), free_port(), free_port()
        config |= {"port": self.port, "host": "127.0.0.1", "http": f"127.0.0.1:{self.monitor}"}
        config["websocket"] |= {"port": self.websocket, "host": "127.0.0.1"}
        file = folder / "nats.conf"
        file.write_text(json.dumps(config))
        self.child = ChildProcess(ChildCommand(arguments=[find_binary(), "-c", str(file)], log=folder / "nats.log"))

    def variables(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor}/varz", timeout=PATIENCE) as reply:
            found: dict[str, Any] = json.load(reply)
        return found

    def closed(self) -> int:
        """The number of closed connections that it remembers."""
        url = f"http://127.0.0.1:{self.monitor}/connz?state=closed&limit=1"
        with urllib.request.urlopen(url, timeout=PATIENCE) as reply:
            return int(json.load(reply)["total"])

    def is_ready(self) -> bool:
        try:
            return bool(self.variables())
        except OSError:
            return False


@pytest.fixture(params=[of_compose, of_chart], ids=["compose", "chart"])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Server]:
    Deployment(tmp_path / "herd", data=str(tmp_path / "data")).make(["default"], int(time.time()))
    found = Server(tmp_path, request.param(tmp_path))
    found.child.start()
    try:
        await found.child.until(found.is_ready, PATIENCE, "nats-server")
        yield found
    finally:
        await found.child.stop(PATIENCE)


async def closed_with(port: int, sent: bytes) -> bytes:
    """All that the server sends to a silent connection until it closes it."""
    received = b""
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(sent)
            while piece := await reader.read(65_536):
                received += piece
        except ConnectionResetError:
            pass
        finally:
            writer.close()
    return received


async def test_unauthenticated_connections_are_few_small_and_short(server: Server) -> None:
    """Connections, their buffers and the time to authenticate are limited, and each silent connection is closed.

    A connection with a part of a request for a websocket, and a silent websocket, are closed as well.
    """
    limits = server.variables()
    assert limits["max_connections"] == Capacity().connections
    assert limits["auth_timeout"] <= 2
    assert limits["max_pending"] <= 64 * MIB
    assert limits["write_deadline"] <= 10 * 10**9
    assert limits["max_payload"] <= MIB
    silent, without_request, half_sent, upgraded, pinging = await asyncio.gather(
        closed_with(server.port, b""),
        closed_with(server.websocket, b""),
        closed_with(server.websocket, UPGRADE),
        closed_with(server.websocket, UPGRADE + b"\r\n"),
        closed_with(server.port, b"PING\r\n"),
    )
    assert b"Authentication Timeout" in silent
    assert without_request == b""
    assert b"101 Switching Protocols" not in half_sent
    assert b"101 Switching Protocols" in upgraded
    assert b"Authentication Timeout" in upgraded
    assert b"PONG" not in pinging


async def test_refused_connections_are_not_remembered_without_limit(server: Server) -> None:
    """The server stores all that a CONNECT stated, 30 KB here, even if refused, but only of the newest ones."""
    connect = b"CONNECT " + json.dumps({"jwt": "x", "name": "<" * 30_000}).encode() + b"\r\n"
    for _ in range(12):
        replies = await asyncio.gather(*(closed_with(server.port, connect) for _ in range(100)))
        assert b"Authorization Violation" in b"".join(replies)
    assert server.closed() == MAX_CLOSED_CONNECTIONS
