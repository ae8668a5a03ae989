"""Ports of a sandbox are forwarded by a real client, spawner, worker and broker to real servers in it."""

import asyncio
import hashlib
import json
import os
import signal
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sandherd.bus.connection import BusError, RefusedError
from sandherd.client import Context, Herd
from sandherd.client.errors import HerdError
from sandherd.contracts.commands import TerminateSandbox
from sandherd.contracts.errors import Code
from sandherd.contracts.names import new_name
from sandherd.contracts.requests import Exec, PortRead, PortWrite, Request
from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE
from tests.preloaded_cli import preloaded_sandherd

ECHO = """
import asyncio, pathlib
async def serve(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write(b"the end")
    writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    pathlib.Path("port.new").write_text(str(server.sockets[0].getsockname()[1]))
    pathlib.Path("port.new").rename("port")
    await server.serve_forever()
asyncio.run(main())
"""
"""A server that returns all bytes, and adds a few after the client has closed its half."""
HTTP = """
import functools, http.server, pathlib
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory="site")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
pathlib.Path("port.new").write_text(str(server.server_port))
pathlib.Path("port.new").rename("port")
server.serve_forever()
"""


class Forwarded:
    """A sandbox with a server, and a client that forwards its ports."""

    def __init__(self, person: Any, herd: Broker, home: Path, sandbox: str) -> None:
        self.person, self.herd, self.home, self.sandbox = person, herd, home, sandbox
        self.work = home / "sandboxes" / sandbox / "work"
        self.client: Herd

    @property
    def credentials(self) -> Path:
        return self.herd.credentials(Principal.CLIENT, project="p1")

    async def serve(self, code: str) -> int:
        """Run this server code in the sandbox; returns its port."""
        command = Exec(sandbox=self.sandbox, exec=new_name("exc"), command=["python3", "-c", code], wait_seconds=0)
        await self.person.bus.ask(command, "p1", timeout=PATIENCE)
        await self.person.eventually((self.work / "port").exists)
        return int((self.work / "port").read_text())


@pytest.fixture
async def forwarded(spawner: Callable[..., Service], person: Any, herd: Broker, home: Path) -> AsyncIterator[Forwarded]:
    async with AsyncExitStack() as opened:
        await opened.enter_async_context(spawner().running())
        sandbox = await person.create()
        await person.sandbox_is(sandbox, "running")
        found = Forwarded(person, herd, home, sandbox)
        context = Context(nats_url=herd.url, credentials=found.credentials, project="p1", home=herd.home)
        found.client = await opened.enter_async_context(Herd.connect(context, patience=PATIENCE))
        yield found


async def test_http_server_in_a_sandbox_is_reached(forwarded: Forwarded) -> None:
    """Several HTTP requests at a time, and a large file, are answered completely and in order."""
    content = os.urandom(3 * 1024 * 1024)
    (forwarded.work / "site").mkdir()
    (forwarded.work / "site" / "file").write_bytes(content)
    port = await forwarded.serve(HTTP)
    async with forwarded.client.forward_port(forwarded.sandbox, port) as forward, aiohttp.ClientSession() as http:

        async def get() -> bytes:
            async with http.get(f"http://127.0.0.1:{forward.local}/file") as reply:
                assert reply.status == 200
                return await reply.read()

        for found in await asyncio.gather(*(get() for _ in range(4))):
            assert hashlib.sha256(found).digest() == hashlib.sha256(content).digest()


async def test_each_direction_ends_by_itself(forwarded: Forwarded) -> None:
    """The server gets the client's end of input, and the client what the server sends afterwards."""
    port = await forwarded.serve(ECHO)
    sent = os.urandom(400_000)
    async with forwarded.client.forward_port(forwarded.sandbox, port) as forward:
        reader, writer = await asyncio.open_connection("127.0.0.1", forward.local)

        async def send() -> None:
            writer.write(sent)
            await writer.drain()
            writer.write_eof()

        async with asyncio.timeout(PATIENCE):
            found, _ = await asyncio.gather(reader.read(-1), send())
        writer.close()
    assert found == sent + b"the end"


async def test_port_without_a_server_ends_the_connection_with_a_reason(forwarded: Forwarded) -> None:
    """The local connection is closed, and the error names what is missing."""
    errors: list[HerdError] = []
    port = await forwarded.serve(ECHO)
    async with forwarded.client.forward_port(forwarded.sandbox, port + 1, report=errors.append) as forward:
        reader, writer = await asyncio.open_connection("127.0.0.1", forward.local)
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(ConnectionResetError):
                await reader.read(-1)
        writer.close()
    assert errors[0].problem.code is Code.CONFLICT
    assert "start a server there" in str(errors[0].problem.remedy)


async def test_ports_of_the_host_are_not_forwarded(forwarded: Forwarded, herd: Broker) -> None:
    """Neither the broker's port, which the sandbox reaches at its loopback, nor a port of the host is forwarded."""
    broker_port = int(herd.url.rsplit(":", 1)[1])
    request = PortWrite(sandbox=forwarded.sandbox, connection="con-1", port=broker_port)
    with pytest.raises(RefusedError) as refused:
        await forwarded.person.bus.ask(request, "p1", timeout=PATIENCE)
    assert refused.value.problem.code is Code.REFUSED
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(RefusedError, match="nothing accepts connections"):
            await forwarded.person.bus.ask(request.model_copy(update={"port": port}), "p1", timeout=PATIENCE)


async def test_sandbox_that_shares_the_network_of_its_host_is_refused(
    spawner: Callable[..., Service], person: Any
) -> None:
    """A sandbox in its host's network is refused, as its loopback is that of the host; the error names the setting."""
    async with spawner(sandbox_network="host").running():
        sandbox = await person.create()
        await person.sandbox_is(sandbox, "running")
        with pytest.raises(RefusedError) as refused:
            await person.bus.ask(PortWrite(sandbox=sandbox, connection="con-1", port=80), "p1", timeout=PATIENCE)
    assert refused.value.problem.code is Code.REFUSED
    assert "SANDHERD_SANDBOX_NETWORK" in refused.value.problem.message


async def test_other_projects_and_subscribers_reach_no_port(forwarded: Forwarded, herd: Broker) -> None:
    """A client of another project finds no such sandbox, and the broker permits no one else requests in p1."""
    port = await forwarded.serve(ECHO)
    requests: tuple[Request[Any], ...] = (
        PortWrite(sandbox=forwarded.sandbox, connection="con-1", port=port),
        PortRead(sandbox=forwarded.sandbox, connection="con-1"),
    )
    async with (
        herd.bus(Principal.CLIENT, project="p2") as stranger,
        herd.bus(Principal.SUBSCRIBER, project="p1") as reader,
    ):
        for request in requests:
            with pytest.raises(RefusedError) as refused:
                await stranger.ask(request, "p2", timeout=PATIENCE)
            assert refused.value.problem.code is Code.NOT_FOUND
            for other in (stranger, reader):
                with pytest.raises(BusError):
                    await other.ask(request, "p1", timeout=1)


async def test_command_forwards_until_its_sandbox_ends(forwarded: Forwarded) -> None:
    """The command prints the local port, and ends with status 1 and the reason when the sandbox ends."""
    (forwarded.work / "site").mkdir()
    (forwarded.work / "site" / "hello").write_text("hello")
    port = await forwarded.serve(HTTP)
    place = ["--nats-url", forwarded.herd.url, "--credentials", str(forwarded.credentials)]
    words = [*place, "port-forward", forwarded.sandbox, f":{port}", "--project", "p1"]
    process = await asyncio.create_subprocess_exec(preloaded_sandherd(), *words, stdout=PIPE, stderr=PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            shown = (await process.stdout.readline()).decode()
        address = shown.split()[0]
        async with aiohttp.ClientSession() as http, http.get(f"http://{address}/hello") as reply:
            assert await reply.text() == "hello"
        await forwarded.person.command(TerminateSandbox(sandbox=forwarded.sandbox, reason="test"), forwarded.sandbox)
        async with asyncio.timeout(PATIENCE):
            _, error = await process.communicate()
        # An earlier line may report the connection, if it was still being closed in the sandbox.
        assert (process.returncode, error.decode().splitlines()[-1].endswith(" has ended")) == (1, True), error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_interrupted_command_ends_and_frees_its_port(forwarded: Forwarded) -> None:
    """An interrupted command ends with status 130 and no output, also while connected; a used port is an error."""
    port = await forwarded.serve(ECHO)
    place = ["--nats-url", forwarded.herd.url, "--credentials", str(forwarded.credentials)]
    words = [*place, "port-forward", forwarded.sandbox, f":{port}", "--project", "p1", "-o", "json"]
    process = await asyncio.create_subprocess_exec(preloaded_sandherd(), *words, stdout=PIPE, stderr=PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            local = json.loads(await process.stdout.readline())["local"]
        with pytest.raises(HerdError, match=f"port {local} of 127.0.0.1 can't be used"):
            async with forwarded.client.forward_port(forwarded.sandbox, port, local=local):
                pass
        reader, writer = await asyncio.open_connection("127.0.0.1", local)
        writer.write(b"hello")
        async with asyncio.timeout(PATIENCE):
            assert await reader.readexactly(5) == b"hello"
            process.send_signal(signal.SIGINT)
            _, error = await process.communicate()
        writer.close()
        assert (process.returncode, error) == (130, b"")
        async with forwarded.client.forward_port(forwarded.sandbox, port, local=local):
            pass
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
