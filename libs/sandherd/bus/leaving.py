"""Leaving the broker for sure: what nats-py leaves off when the connection is lost in that very moment is done here."""

import asyncio
from contextlib import suppress
from typing import Final

import nats.errors
from nats.aio.client import Client

from sandherd.bus.together import end
from sandherd.telemetry import logs

_POLITELY: Final = 5.0
_log: Final = logs.get("bus")


async def leave(client: Client) -> None:
    """Say what is left to say, if the connection stands, and close it."""
    try:
        if client.is_connected:
            async with asyncio.timeout(_POLITELY):
                await client.drain()
    except (TimeoutError, nats.errors.Error, OSError) as error:
        _log.warning("could not leave politely", error=repr(error))
    finally:
        await close(client)


async def close(client: Client) -> None:
    """Close it at once; what is left to say is lost.

    nats-py would write that to a connection that may be lost, and leave off closing it. Its reconnecting may swallow
    that it is cancelled (see `together`), and would go on for ever: as a connection that nobody knows of.
    """
    forget_unsent(client)
    connecting = client._reconnection_task  # noqa: SLF001  # nats-py cancels it once, and does not look whether it ends
    with suppress(OSError):  # the connection was lost while it was being closed
        await client.close()
    if connecting is not None and connecting is not asyncio.current_task():
        await end([connecting])
        transport = client._transport  # noqa: SLF001  # the last one that it made
        if transport is not None:
            transport.close()  # type: ignore[no-untyped-call]  # nats-py carries no types there


def forget_unsent(client: Client) -> None:
    """Drop what was published and not written yet."""
    client._pending.clear()  # noqa: SLF001  # nats-py has no other way
    client._pending_data_size = 0  # noqa: SLF001  # nats-py has no other way
