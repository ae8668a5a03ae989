"""Retries of provider calls. The decision is a pure function; the loop is at the end."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from sandherd.backoff import Backoff
from spawner.runtimes.boxes.provider import ProviderError, ProviderFault

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True)
class RetryLimits:
    """The maximum number of tries, and the backoff between them in seconds."""

    tries: int = 5
    first: float = 0.25
    """The maximum delay after the first try; doubled after each try."""
    longest: float = 8.0
    """The maximum delay of any retry. If a provider requests a longer delay, the error is raised to the caller."""


USUAL: Final = RetryLimits()


def wait_before_next(tried: int, error: ProviderError, patience: RetryLimits, chance: float) -> float | None:
    """The delay in seconds after `tried` tries, the last of which raised `error`; None: do not retry.

    Transient errors are retried with full jitter, so that callers do not retry at the same time; a delay requested by
    the provider is waited for, plus a little jitter. `chance` is between 0 and 1. Timeouts and refusals are not
    retried: the former have already waited, the latter will not change.
    """
    if tried >= patience.tries:
        return None
    if error.fault is ProviderFault.RATE_LIMITED and error.wait is not None:
        wait = error.wait + chance * patience.first
        return wait if error.wait <= patience.longest else None
    if error.fault in {ProviderFault.TRANSIENT, ProviderFault.RATE_LIMITED}:
        return Backoff(patience.first, patience.longest).delay(tried - 1, chance)
    return None


async def with_retry(
    call: Callable[[], Awaitable[AnswerT]], patience: RetryLimits = USUAL, chance: Callable[[], float] = random.random
) -> AnswerT:
    """Return the result of `call`, which must be idempotent, with retries as `wait_before_next` decides."""
    tried = 0
    while True:
        try:
            return await call()
        except ProviderError as error:
            tried += 1
            wait = wait_before_next(tried, error, patience, chance())
            if wait is None:
                raise
        await asyncio.sleep(wait)
