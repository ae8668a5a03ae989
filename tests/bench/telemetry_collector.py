"""A collector that discards what it receives, and a Prometheus that scrapes every two seconds.

`python -m tests.bench.telemetry_collector PORT METRICS MOOD`: it listens at PORT, and scrapes /metrics at METRICS. The
mood is `takes` or `hangs`.
"""

import asyncio
import sys
from contextlib import suppress
from typing import Final

import aiohttp
from aiohttp import web

_INTERVAL: Final = 2.0
"""Seconds: a run takes about this long and is scraped once; with a longer interval it might not be scraped."""


async def ask(port: str) -> None:
    """Scrape the metrics, as Prometheus does."""
    async with aiohttp.ClientSession() as session:
        while True:
            with suppress(aiohttp.ClientError):
                async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                    await answer.read()
            await asyncio.sleep(_INTERVAL)


async def main(port: str, metrics: str, mood: str) -> None:
    """Run until the process is ended."""

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
