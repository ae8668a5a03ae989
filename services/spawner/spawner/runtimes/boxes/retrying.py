"""When a provider is asked the same again. What decides is pure; what asks is at the end."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from spawner.runtimes.boxes.provider import ProviderError, ProviderFault

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True)
class Patience:
    """How often it is asked in all, and how long is waited in between, in seconds."""

    tries: int = 5
    first: float = 0.25
    """The most that is waited after the first try; it is doubled after each."""
    longest: float = 8.0
    """The most that is ever waited here. A provider that asks for more is left to whoever has asked."""


USUAL: Final = Patience()


def wait_before_next(tried: int, error: ProviderError, patience: Patience, chance: float) -> float | None:
    """For how long to wait after `tried` tries, the last of which ended so; None: it is not asked again here.

    A provider that is out of order is asked after a time that is all chance (full jitter), so that those that it has
    failed do not come back together; one that has said for how long to wait is asked just after that. `chance` lies
    between 0 and 1. What took too long was waited for already, and what is refused stays so.
    """
    if tried >= patience.tries:
        return None
    growing: float = min(patience.longest, patience.first * 2.0 ** (tried - 1))
    if error.fault is ProviderFault.RATE_LIMITED and error.wait is not None:
        wait = error.wait + chance * patience.first
        return wait if error.wait <= patience.longest else None
    if error.fault in {ProviderFault.TRANSIENT, ProviderFault.RATE_LIMITED}:
        return chance * growing
    return None


async def persistently(
    ask: Callable[[], Awaitable[AnswerT]], patience: Patience = USUAL, chance: Callable[[], float] = random.random
) -> AnswerT:
    """The answer, asked for again for as long as that is of use. What is asked has to be safe to repeat."""
    tried = 0
    while True:
        try:
            return await ask()
        except ProviderError as error:
            tried += 1
            wait = wait_before_next(tried, error, patience, chance())
            if wait is None:
                raise
        await asyncio.sleep(wait)
