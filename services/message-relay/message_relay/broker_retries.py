"""Repeats a request until the broker replies."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.publish_retries import BROKER_BACKOFF

ReplyT = TypeVar("ReplyT")


async def until_reply(
    request: Callable[[], Awaitable[ReplyT]],
    log_failure: Callable[[int, Exception], None],
    errors: tuple[type[Exception], ...] = BROKER_ERRORS,
) -> ReplyT:
    """Send a request to the broker, and repeat it while it raises one of `errors`. Returns its result.

    `log_failure` gets the number of earlier failures, and the error, of each failure.
    """
    attempt = 0
    while True:
        try:
            return await request()
        except errors as error:
            log_failure(attempt, error)
        await asyncio.sleep(BROKER_BACKOFF.delay(attempt))
        attempt += 1
