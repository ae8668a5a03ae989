"""A program that plays services of the host, on every address that it has, and reports its visitors.

    python listeners.py

`TCP port` and `UDP port` and an abstract socket are printed first; then one line for each visitor.
"""

import asyncio
import socket
import sys

ABSTRACT = "\0sandherd-test-host-service"


class _Datagrams(asyncio.DatagramProtocol):
    def datagram_received(self, _data: bytes, _addr: object) -> None:
        print("visitor udp", flush=True)


async def main() -> None:
    """Run until standard input ends."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        print("visitor tcp", flush=True)
        writer.write(b"reached\n")
        writer.close()

    both = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    port = both.getsockname()[1]
    await asyncio.start_server(serve, sock=both)
    await asyncio.start_unix_server(serve, ABSTRACT)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(_Datagrams, ("0.0.0.0", 0))
    print(port, transport.get_extra_info("sockname")[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
