"""A collector that looks into nothing, and a Prometheus that asks every two seconds.

`python -m tests.bench.telemetry_collector PORT METRICS MOOD`: listens at PORT, asks for /metrics at METRICS. The mood
is `takes` or `hangs`.
"""

import asyncio
import sys
from contextlib import suppress
from typing import Final

import aiohttp
from aiohttp import web

_INTERVAL: Final = 2.0
"""In seconds. A run takes about as long: it is asked once in it, as more seldom it might not be at all."""


async def ask(port: str) -> None:
    """Ask for metrics, as Prometheus does."""
    async with aiohttp.ClientSession() as session:
        while True:
            with suppress(aiohttp.ClientError):
                async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                    await answer.read()
            await asyncio.sleep(_INTERVAL)


async def main(port: str, metrics: str, mood: str) -> None:
    """Until it is ended."""

    async def take(request: web.Request) -> web.Response:
        await request.read()
        if mood == "hangs":
            await asyncio.Event().wait()
        return web.Response(content_type="application/x-protobuf")

    application = web.Application(client_max_size=64 * 1024 * 1024)
    application.router.add_post("/v1/{signal}", take)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(port)).start()
    await ask(metrics)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:]))
