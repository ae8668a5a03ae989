"""Closes a broker connection reliably, even if it is lost meanwhile, when nats-py's close would not end."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from nats.aio.client import Client

from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.concurrency import SHORT_CLEANUP_SECONDS, cancel_and_wait
from sandherd.telemetry import logs

_CLOSE_SECONDS: Final = 5.0
"""Maximum seconds to send pending data, and then to close the connection. After that the connection is aborted."""
_log: Final = logs.get("bus")


async def drain(client: Client) -> None:
    """Close the connection. If it is established, send pending data and handle received messages before."""
    draining = asyncio.create_task(_logging_errors(client.drain())) if client.is_connected else None
    try:
        if draining is not None and not await _is_done(draining):
            _log.warning("connection not drained, closing", error="the broker does not respond")
    finally:
        await close(client)
        if draining is not None:
            # nats-py continues after its first cancellation, with a flush of up to 10 s.
            await cancel_and_wait([draining], again_after=SHORT_CLEANUP_SECONDS)


async def close(client: Client) -> None:
    """Close the connection at once; pending data is lost.

    nats-py would write pending data to a connection that may be lost, and then fail to close it. It would also wait
    without limit for a broker that does not read. Its reconnect task may swallow the cancellation (see `concurrency`)
    and would reconnect forever.
    """
    drop_unsent(client)
    connecting = client._reconnection_task  # noqa: SLF001  # nats-py cancels it once and does not check that it ends
    closing = asyncio.create_task(_logging_errors(client.close()))
    try:
        if not await _is_done(closing):
            _log.warning("connection not closed, aborting", error="the broker does not respond")
    finally:
        if not closing.done():
            abort(client)
            await cancel_and_wait([closing], again_after=SHORT_CLEANUP_SECONDS)
    if connecting is not None and connecting is not asyncio.current_task():
        await cancel_and_wait([connecting])
        transport = client._transport  # noqa: SLF001  # the last transport that the task opened
        if transport is not None:
            transport.close()  # type: ignore[no-untyped-call]  # nats-py carries no types there


async def _is_done(task: "asyncio.Task[None]") -> bool:
    done, _ = await asyncio.wait([task], timeout=_CLOSE_SECONDS)
    return bool(done)


async def _logging_errors(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except BROKER_ERRORS as error:  # the connection was lost meanwhile
        _log.info("connection lost during close", error=repr(error))


def abort(client: Client) -> None:
    """Close the socket without waiting for data that the broker does not receive."""
    writer = getattr(client._transport, "_io_writer", None)  # noqa: SLF001  # nats-py has no other way
    if writer is not None:
        writer.transport.abort()


def drop_unsent(client: Client) -> None:
    """Drop messages that were published but not written yet."""
    client._pending.clear()  # noqa: SLF001  # nats-py has no other way
    client._pending_data_size = 0  # noqa: SLF001  # nats-py has no other way
