"""WebSockets on a whole herd: interactive terminals, live events for earlier clients, and refused clients."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import aiohttp
import pytest

from gateway import event_stream, sockets
from sandherd.client import Herd
from sandherd.stack.broker import Broker
from tests.integration.gateway.conftest import OTHER, Api, herd_context
from tests.patience import PATIENCE
from tests.polling import eventually

Connection = aiohttp.ClientWebSocketResponse


@asynccontextmanager
async def opened(api: Api, path: str, *, token: str | None = None, **headers: str) -> AsyncIterator[Connection]:
    """Open a WebSocket with a token in the header; an empty token is not sent."""
    text = api.token if token is None else token
    sent = headers | ({"Authorization": f"Bearer {text}"} if text else {})
    async with asyncio.timeout(PATIENCE), api.session.ws_connect(f"{api.url}{path}", headers=sent) as connection:
        yield connection


class Screen:
    """The output of a terminal: its bytes, and its documents."""

    def __init__(self, connection: Connection, first: dict[str, Any]) -> None:
        self.shown = b""
        self.connection = connection
        self.first = first

    async def begin(self) -> str:
        """Start a command or attach to one. Returns the command's name."""
        await self.connection.send_json(self.first)
        return str((await self.connection.receive_json())["exec"])

    async def until(self, text: bytes) -> None:
        """Read until this text is shown."""
        while text not in self.shown:
            self.shown += await self.connection.receive_bytes()

    async def end(self) -> dict[str, Any]:
        """Read until the document at the end."""
        while (message := await self.connection.receive()).type is aiohttp.WSMsgType.BINARY:
            self.shown += message.data
        found: dict[str, Any] = message.json()
        assert (await self.connection.receive()).type is aiohttp.WSMsgType.CLOSE
        return found


@pytest.fixture(autouse=True)
def _beat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check tokens more often than every 15 s."""
    monkeypatch.setattr(event_stream.EventStreams.__init__, "__defaults__", (0.2, event_stream.STALL))


@pytest.fixture
async def sandbox(api: Api) -> str:
    name: str = (await api.call("POST", "/api/v1/sandboxes", json={}))[1]["name"]
    await eventually(partial(_runs, api, name), "the sandbox runs")
    return name


async def _runs(api: Api, sandbox: str) -> bool:
    status, view, _ = await api.call("GET", f"/api/v1/sandboxes/{sandbox}")
    return status == 200 and view["state"] == "running"


async def test_terminal_survives_its_connection(
    api: Api, herd: Broker, sandbox: str, client: Herd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal has input, output, size and exit status, and continues after a lost connection and after a detach."""
    path = f"/api/v1/sandboxes/{sandbox}/terminal"
    start = {"type": "start", "command": ["sh"], "env": {"PS1": "$"}, "size": {"rows": 11, "columns": 33}}
    async with opened(api, path) as connection:
        screen = Screen(connection, start)
        name = await screen.begin()
        await connection.send_bytes(b"stty size; stty -echo\n")
        await screen.until(b"11 33")
        await connection.send_json({"type": "resize", "size": {"rows": 22, "columns": 44}})
        await connection.send_bytes(b"stty size\n")
        await screen.until(b"22 44")
        connection._response.connection.transport.abort()  # type: ignore[union-attr]  # as a network that fails
    await _check_attached_again(api, path, name, len(screen.shown))
    for first in ({"type": "start", "command": []}, {"type": "x"}, {"type": "attach", "exec": "exc-none"}):
        async with opened(api, path) as connection:
            await connection.send_json(first)
            assert (await connection.receive()).data in {4400, 4404}
    await _refusals(api, herd, sandbox, client)
    await _revocation(api, sandbox, client, monkeypatch)


async def _check_attached_again(api: Api, path: str, name: str, seen: int) -> None:
    """Check that the next connections get only what follows their offset, and the last one the exit status."""
    async with opened(api, path) as connection:
        screen = Screen(connection, {"type": "attach", "exec": name, "offset": seen})
        assert await screen.begin() == name
        await connection.send_bytes(b"echo again\n")
        await screen.until(b"again")
        assert b"22 44" not in screen.shown
        await connection.send_json({"type": "detach"})
        assert (await connection.receive()).data == 1000
    async with opened(api, path) as connection:
        screen = Screen(connection, {"type": "attach", "exec": name})
        await screen.begin()
        await screen.until(b"again")
        await connection.send_bytes(b"exit 7\n")
        end = await screen.end()
    assert (end["state"], end["status"]) == ("exited", 7)


async def _refusals(api: Api, herd: Broker, sandbox: str, client: Herd) -> None:
    """Check that another site's page, an invalid token, a lower role and another project's token get no socket."""
    path = f"/api/v1/sandboxes/{sandbox}/terminal"
    reader = (await client.create_token("reader", "read")).text
    async with Herd.connect(herd_context(herd, OTHER)) as other:
        stranger = (await other.create_token("all", "operate")).text
    for token, headers, status in (
        (api.token, {"Origin": "https://evil.example"}, 403),
        ("", {"Origin": "null"}, 403),
        (api.token[:-1] + "_", {}, 401),
        (reader, {}, 403),
        (api.token, {"Host": "evil.example"}, 421),
    ):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with opened(api, path, token=token, **headers):
                pass
        assert refused.value.status == status
    async with opened(api, path, token=stranger) as connection:
        assert (await connection.receive()).data == 4404
    async with opened(api, f"{path}?token={api.token}", token="") as connection:
        await connection.send_json({"type": "start", "command": ["true"]})
        assert (await connection.receive()).data == 4401
    async with opened(api, path, token="") as connection:
        await connection.send_json({"type": "authenticate", "token": reader})
        assert (await connection.receive()).data == 4403


async def _revocation(api: Api, sandbox: str, client: Herd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that events arrive once each over two connections, and that the token's end closes the socket."""
    path = f"/api/v1/sandboxes/{sandbox}/events/socket"
    monkeypatch.setattr(sockets, "SIGN_IN_SECONDS", 0.05)
    async with opened(api, path, token="") as connection:
        assert (await connection.receive()).data == 4401
    monkeypatch.setattr(sockets, "SIGN_IN_SECONDS", PATIENCE)
    token = (await client.create_token("socket", "read")).text
    async with opened(api, path, token="") as connection:
        await connection.send_json({"type": "authenticate", "token": token})
        ready = await connection.receive_json()
    assert ready["type"] == "ready"
    epoch = ready["id"].partition("-")[0]
    async with opened(api, f"{path}?after={epoch}-0", token=token) as connection:
        assert (await connection.receive_json())["type"] == "ready"
        first = await connection.receive_json()
    assert first["type"] == first["data"]["type"] == "sandbox.requested"
    async with opened(api, f"{path}?after={first['id']}", token=token) as connection:
        assert (await connection.receive_json())["type"] == "ready"
        await client.revoke_token("socket")
        while (message := await connection.receive()).type is aiohttp.WSMsgType.TEXT:
            assert message.json()["id"] != first["id"]
        assert message.data == 4401
