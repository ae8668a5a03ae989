"""Handling what a durable consumer delivers: each message ends in one of three ways, and none is lost.

Messages of one lane (a sandbox, a task) take effect in the order of the stream: while one is handled, or waits to be
tried again, those behind it in its lane wait, and other lanes go on. Lanes and projects take turns (`fair_queue`), and
who publishes beyond a rate is served later (`intake`). Two replicas that read one consumer each keep this order for
what the broker gives them; the records' compare-and-set decides between them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from nats.aio.msg import Msg

from sandherd.bus.connection import Bus
from sandherd.bus.dead_letters import dead_headers, revived
from sandherd.bus.health import Health
from sandherd.bus.held_messages import HeldMessages, Skip
from sandherd.bus.outcomes import (
    DONE,
    MOST_DELIVERIES,
    BatchHandler,
    Counted,
    Dead,
    Delivery,
    Done,
    Handler,
    Outcome,
    Retry,
    outcome_of,
    read_delivery,
)
from sandherd.bus.pulling import DeafError, Puller, bound
from sandherd.bus.source_limits import Limits
from sandherd.contracts.streams import BY_CONSUMER, Consumer
from sandherd.telemetry import logs

__all__ = [
    "DONE",
    "MOST_DELIVERIES",
    "BatchHandler",
    "Counted",
    "Dead",
    "Delivery",
    "Done",
    "Handler",
    "Limits",
    "Outcome",
    "Retry",
    "Skip",
    "consume",
    "consume_batches",
    "dead_headers",
    "outcome_of",
    "read_delivery",
    "revived",
]

_PULLED: Final = 256
"""Maximum messages pulled at a time; a worker's largest ones fill 72 MiB."""
_USUAL: Final = Limits()
_log: Final = logs.get("consuming")


async def consume(
    bus: Bus,
    consumer: str,
    handle: Handler,
    *,
    health: Health,
    concurrency: int = 1,
    counted: Counted | None = None,
    limits: Limits = _USUAL,
    skip: Skip | None = None,
) -> None:
    """Hand each message to `handle`, up to `concurrency` at a time, those of one lane in order. Until cancelled."""
    row = BY_CONSUMER[consumer]
    async with HeldMessages.open(bus, row, counted, limits, skip) as held, asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(_handle_each(held, handle))
        await _pull(bus, row, held.accept, health, batch=_PULLED, window=_PULLED)


async def consume_batches(
    bus: Bus,
    consumer: str,
    handle: BatchHandler,
    *,
    health: Health,
    batch: int = 500,
    in_flight: int = 1,
    counted: Counted | None = None,
    limits: Limits = _USUAL,
) -> None:
    """Hand what is there, up to `batch` messages, to `handle`, which answers with as many outcomes. Until cancelled.

    Up to `in_flight` batches are handled at a time, in any order: one is read while another is being stored.
    """
    row = BY_CONSUMER[consumer]
    async with HeldMessages.open(bus, row, counted, limits, None) as held, asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(_handle_batches(held, handle, batch))
        await _pull(bus, row, held.accept, health, batch=batch, window=batch * 4)


async def _pull(
    bus: Bus,
    consumer: Consumer,
    accept: Callable[[list[Msg]], Awaitable[None]],
    health: Health,
    *,
    batch: int,
    window: int,
) -> None:
    puller = Puller(bus, consumer.stream, consumer.name, window)
    health.add(f"consumer {consumer.name}", puller.problem)
    try:
        while True:
            await bound(puller)
            try:
                while True:
                    await accept(await puller.next_batch(batch))
            except DeafError as error:
                _log.error("lost the consumer", error=str(error))
    finally:
        await puller.unbind()


async def _handle_each(held: HeldMessages, handle: Handler) -> None:
    while True:
        await held.handle_one(await held.next(), handle)


async def _handle_batches(held: HeldMessages, handle: BatchHandler, most: int) -> None:
    while True:
        await held.handle_batch(await held.next_batch(most), handle)
