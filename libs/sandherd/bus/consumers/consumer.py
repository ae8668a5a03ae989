"""Handles the messages of a durable consumer. Each message has one of three outcomes, and none is lost.

Messages of one lane (a sandbox, a task) take effect in stream order: while one is handled, or waits for a retry, later
messages of its lane wait, and other lanes continue. Lanes and projects take turns (`fair_queue`), and messages above a
rate are redelivered later (`intake`). If two replicas read one consumer, each keeps this order only for the messages
that it receives; compare-and-set on the records rejects a write that is too late.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from nats.aio.msg import Msg

from sandherd.bus.connection import Bus
from sandherd.bus.consumers.dead_letters import dead_headers, original_delivery
from sandherd.bus.consumers.held_messages import HeldMessages, Skip
from sandherd.bus.consumers.intake import SourceLimits
from sandherd.bus.consumers.outcomes import (
    DONE,
    MAX_DELIVERIES,
    BatchHandler,
    Dead,
    Delivery,
    Done,
    Handler,
    OnOutcome,
    Outcome,
    Retry,
    outcome_of,
    read_delivery,
)
from sandherd.bus.consumers.pull import ConsumerUnresponsiveError, Puller, bind_with_retries
from sandherd.bus.health import Health
from sandherd.concurrency import run_until_first
from sandherd.contracts.streams import BY_CONSUMER, Consumer
from sandherd.telemetry import logs

__all__ = [
    "DONE",
    "MAX_DELIVERIES",
    "BatchHandler",
    "Dead",
    "Delivery",
    "Done",
    "Handler",
    "OnOutcome",
    "Outcome",
    "Retry",
    "Skip",
    "SourceLimits",
    "consume",
    "consume_batches",
    "dead_headers",
    "original_delivery",
    "outcome_of",
    "read_delivery",
]

_MAX_PULLED: Final = 256
"""Maximum number of messages that one pull requests. If each has a worker's maximum size, they have 72 MiB."""
_DEFAULT_LIMITS: Final = SourceLimits()
_log: Final = logs.get("consumer")


async def consume(
    bus: Bus,
    consumer: str,
    handle: Handler,
    *,
    health: Health,
    concurrency: int = 1,
    counted: OnOutcome | None = None,
    limits: SourceLimits = _DEFAULT_LIMITS,
    skip: Skip | None = None,
) -> None:
    """Pass messages to `handle` until cancelled, up to `concurrency` at a time, and messages of one lane in order."""
    row = BY_CONSUMER[consumer]
    async with HeldMessages.open(bus, row, counted, limits, skip) as held:
        # Not a TaskGroup, which cancels a task once: nats-py ignores that if a reply is received at the same moment.
        await run_until_first(
            _pull(bus, row, held.accept, health, batch=_MAX_PULLED, window=_MAX_PULLED),
            *(_handle_each(held, handle) for _ in range(concurrency)),
        )


async def consume_batches(
    bus: Bus,
    consumer: str,
    handle: BatchHandler,
    *,
    health: Health,
    batch: int = 500,
    in_flight: int = 1,
    counted: OnOutcome | None = None,
    limits: SourceLimits = _DEFAULT_LIMITS,
) -> None:
    """Pass batches of up to `batch` available messages to `handle`, which returns an outcome for each, until cancelled.

    Up to `in_flight` batches are handled at a time, in any order, so that one batch can be read while another one is
    stored. The messages have no headers.
    """
    row = BY_CONSUMER[consumer]
    async with HeldMessages.open(bus, row, counted, limits, None) as held:
        await run_until_first(
            _pull(bus, row, held.accept, health, batch=batch, window=batch * 4, headers=False),
            *(_handle_batches(held, handle, batch) for _ in range(in_flight)),
        )


async def _pull(
    bus: Bus,
    consumer: Consumer,
    accept: Callable[[list[Msg]], Awaitable[None]],
    health: Health,
    *,
    batch: int,
    window: int,
    headers: bool = True,
) -> None:
    puller = Puller(bus, consumer.stream, consumer.name, window, headers=headers)
    health.add(f"consumer {consumer.name}", puller.problem)
    try:
        while True:
            await bind_with_retries(puller)
            try:
                while True:
                    await accept(await puller.next_batch(batch))
            except ConsumerUnresponsiveError as error:
                _log.error("consumer not responding, rebinding", error=str(error))
    finally:
        await puller.unbind()


async def _handle_each(held_messages: HeldMessages, handle: Handler) -> None:
    while True:
        await held_messages.handle_one(await held_messages.next(), handle)


async def _handle_batches(held_messages: HeldMessages, handle: BatchHandler, limit: int) -> None:
    while True:
        await held_messages.handle_batch(await held_messages.next_batch(limit), handle)
