"""A program that plays everything beyond the host: public servers, and private ones that no sandbox may reach.

    python world.py HIT_LOG FOLDER

It serves every address of its network namespace. Each connection is one line `address port` in the log.
"""

import asyncio
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

BLOCK = bytes(range(256)) * 256


async def main() -> None:
    """Run until standard input ends."""
    log, folder = Path(sys.argv[1]), Path(sys.argv[2])

    def hit(host: str, port: int) -> None:
        with log.open("a") as file:
            file.write(f"{host} {port}\n")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = writer.get_extra_info("sockname")[:2]
        hit(host.removeprefix("::ffff:"), port)
        try:
            await SERVICES[port](reader, writer, folder)
            writer.write_eof()
        except OSError:
            pass
        finally:
            writer.close()

    for port in SERVICES:
        await asyncio.start_server(serve, "0.0.0.0", port, limit=1 << 20)
        await asyncio.start_server(serve, "::", port, limit=1 << 20)
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(lambda: _Datagrams(hit), ("0.0.0.0", 9999))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, hit: Callable[[str, int], None]) -> None:
        self._hit = hit

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._hit("udp", 9999)


async def _http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, folder: Path) -> None:
    line = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode()
    path = folder / line.split()[1].partition("?")[0].lstrip("/")
    body = path.read_bytes() if path.is_file() else b"public" if line.split()[1] == "/" else None
    status = "200 OK" if body is not None else "404 Not Found"
    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body or b'')}\r\nConnection: close\r\n\r\n".encode())
    writer.write(body or b"")


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _folder: Path) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def _digest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _folder: Path) -> None:
    """Read until the other side has closed its half, and only then respond."""
    digest = hashlib.sha256()
    while data := await reader.read(1 << 20):
        digest.update(data)
    writer.write(digest.hexdigest().encode())


async def _greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _folder: Path) -> None:
    """Send first."""
    writer.write(b"welcome\n")
    await reader.readline()


async def _generate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _folder: Path) -> None:
    for _ in range(int(await reader.readline())):
        writer.write(BLOCK)
        await writer.drain()


SERVICES = {80: _http, 7: _echo, 9: _digest, 13: _greet, 19: _generate}


if __name__ == "__main__":
    asyncio.run(main())
