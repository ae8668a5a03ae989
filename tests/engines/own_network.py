"""A network namespace for a browser, which addresses that other tests add and remove do not change.

When an address of the host changes, requests of Chromium that wait for a connection fail (`net::ERR_NETWORK_CHANGED`).
Sandboxes and containers of other tests add and remove such addresses.
"""

import asyncio
import ctypes
import os
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NETWORK: Final = 0x40000000
_VERSION: Final = 5
_BY_NAME: Final = 3
_DONE: Final = b"\x05\x00\x00\x01" + bytes(6)


@dataclass(frozen=True)
class OwnNetwork:
    """A namespace with a loopback interface only."""

    proxy: str
    """The URL of a SOCKS proxy in the namespace. It connects to addresses of the host's loopback interface."""
    namespace: Path
    folder: Path

    def entry(self, program: Path) -> Path:
        """An executable that runs a program in the namespace."""
        entry = self.folder / program.name
        entry.write_text(f'#!/bin/sh\nexec nsenter --net={self.namespace} -- {program} "$@"\n')
        entry.chmod(0o755)
        return entry


@asynccontextmanager
async def own_network() -> AsyncIterator[OwnNetwork | None]:
    """Create a namespace until the end of the block. None if the tests do not run as root, who alone can create one."""
    if os.geteuid() != 0:
        yield None
        return
    with ThreadPoolExecutor(1) as thread:  # a namespace is of one thread, which then runs nothing else
        namespace, listener = thread.submit(_create).result()
    server = await asyncio.start_server(_forward, sock=listener)
    try:
        async with server:
            with tempfile.TemporaryDirectory() as folder:
                url = "socks5://{}:{}".format(*listener.getsockname())
                yield OwnNetwork(url, Path(f"/proc/{os.getpid()}/fd/{namespace}"), Path(folder))
    finally:
        os.close(namespace)


def _create() -> tuple[int, socket.socket]:
    """Move this thread to a new namespace. Returns a descriptor of it, and a socket that listens in it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NETWORK) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY), socket.create_server(("127.0.0.1", 0))


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve a connection by SOCKS 5 (RFC 1928): only the command CONNECT by name, which is all that Chromium sends."""
    with closing(writer):
        try:
            _, methods = await reader.readexactly(2)
            await reader.readexactly(methods)
            writer.write(bytes((_VERSION, 0)))
            _, _, _, kind, length = await reader.readexactly(5)
            assert kind == _BY_NAME
            host = (await reader.readexactly(length)).decode()
            port = int.from_bytes(await reader.readexactly(2), "big")
            host_reader, host_writer = await asyncio.open_connection(host, port)
        except (OSError, asyncio.IncompleteReadError):
            return  # the browser sees a refused connection
        with closing(host_writer):
            writer.write(_DONE)
            directions = [
                asyncio.create_task(_copy(source, target))
                for source, target in ((reader, host_writer), (host_reader, writer))
            ]
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
            for direction in directions:
                direction.cancel()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):  # a broken connection is an end, too
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
