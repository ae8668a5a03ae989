"""A program that plays the resolver of the host: it answers on 127.0.0.53 from a table in a JSON file.

    python names.py TABLE LOG

A name has a list of answers, each a list of addresses; every question for an address takes the next one, and the last
one is for ever. So a name can be rebound. Each question is one line of the log.
"""

import asyncio
import ipaddress
import json
import struct
import sys
from pathlib import Path


class Names(asyncio.DatagramProtocol):
    """The table; it answers queries for A and AAAA records."""

    def __init__(self, table: dict[str, list[list[str]]], log: Path) -> None:
        self._table, self._log = table, log
        self._requested: dict[tuple[str, int], int] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        place, labels = 12, []
        while size := data[place]:
            labels.append(data[place + 1 : place + 1 + size].decode())
            place += 1 + size
        name, kind = ".".join(labels).lower(), struct.unpack_from("!H", data, place + 1)[0]
        with self._log.open("a") as log:
            log.write(f"{name}\n")
        found = [one for one in self._answer(name, kind) if (one.version == 4) == (kind == 1)]
        flags = 0x8180 | (0 if name in self._table else 3)
        answer = data[:2] + struct.pack("!HHHHH", flags, 1, len(found), 0, 0) + data[12 : place + 5]
        for one in found:
            answer += b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 0, len(one.packed)) + one.packed
        self._transport.sendto(answer, addr)  # type: ignore[attr-defined]

    def _answer(self, name: str, kind: int) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
        answers = self._table.get(name, [[]])
        number = self._requested.get((name, kind), 0)
        self._requested[name, kind] = number + 1
        return [ipaddress.ip_address(one) for one in answers[min(number, len(answers) - 1)]]


async def main() -> None:
    """Run until standard input ends."""
    table = json.loads(Path(sys.argv[1]).read_text())
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(lambda: Names(table, Path(sys.argv[2])), ("127.0.0.53", 53))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
