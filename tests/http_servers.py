"""Stops an HTTP server that runs in the process of a test."""

import asyncio

from aiohttp import web


async def stop_server(runner: web.AppRunner) -> None:
    """Stop the server, and close every connection at once.

    aiohttp closes a connection when the client has read everything that was written to it. A client that has gone never
    reads it, and the socket would be reported as unclosed in a later test.
    """
    transports = [handler.transport for handler in runner.server.connections] if runner.server else []
    await runner.cleanup()
    for transport in transports:
        if isinstance(transport, asyncio.WriteTransport):
            transport.abort()
    await asyncio.sleep(0)  # the event loop closes the sockets in its next round
