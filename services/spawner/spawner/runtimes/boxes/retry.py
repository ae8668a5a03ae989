"""Retries of provider calls. The decision is a pure function; the loop is at the end."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from sandherd.backoff import Backoff
from spawner.runtimes.boxes.provider import ProviderError, ProviderFault

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class RetryLimits:
    """The maximum number of tries, and the backoff between them in seconds."""

    tries: int = 5
    first: float = 0.25
    """The maximum delay after the first try; doubled after each try."""
    longest: float = 8.0
    """The maximum delay of any retry. If a provider requests a longer delay, the error is raised to the caller."""


DEFAULT_LIMITS: Final = RetryLimits()


def wait_before_next(tries: int, error: ProviderError, limits: RetryLimits, jitter: float) -> float | None:
    """The delay in seconds after this number of tries, the last of which raised `error`; None: do not retry.

    Transient errors are retried with full jitter, so that callers do not retry at the same time. A delay that the
    provider requests is waited for, plus a little jitter. `jitter` is a random number between 0 and 1. Other errors are
    not retried: a timed out request has already waited, and a refusal will not change.
    """
    if tries >= limits.tries:
        return None
    if error.fault is ProviderFault.RATE_LIMITED and error.wait is not None:
        wait = error.wait + jitter * limits.first
        return wait if error.wait <= limits.longest else None
    if error.fault in {ProviderFault.TRANSIENT, ProviderFault.RATE_LIMITED}:
        return Backoff(limits.first, limits.longest).delay(tries - 1, jitter)
    return None


async def with_retry(
    call: Callable[[], Awaitable[ResultT]],
    limits: RetryLimits = DEFAULT_LIMITS,
    random_number: Callable[[], float] = random.random,
) -> ResultT:
    """Return the result of `call`, which must be idempotent, with retries as `wait_before_next` decides."""
    tries = 0
    while True:
        try:
            return await call()
        except ProviderError as error:
            tries += 1
            wait = wait_before_next(tries, error, limits, random_number())
            if wait is None:
                raise
        await asyncio.sleep(wait)
