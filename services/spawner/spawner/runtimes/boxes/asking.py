"""Asking a provider: its faults as a runtime's, and its news for as long as anybody wants to hear them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, TypeVar

from sandherd.telemetry import logs
from spawner.runtimes.boxes.provider import ProviderError, ProviderFault
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault

AS: Final = {
    ProviderFault.NOT_FOUND: RuntimeFault.LOST,
    ProviderFault.QUOTA: RuntimeFault.QUOTA,
    ProviderFault.RATE_LIMITED: RuntimeFault.UNAVAILABLE,
    ProviderFault.REFUSED: RuntimeFault.REFUSED,
    ProviderFault.TRANSIENT: RuntimeFault.UNAVAILABLE,
    ProviderFault.TIMED_OUT: RuntimeFault.UNAVAILABLE,
}
AnswerT = TypeVar("AnswerT")
_log: Final = logs.get("runtime.boxes")


async def asked(answer: Awaitable[AnswerT]) -> AnswerT:
    """The provider's answer. Raises `RuntimeFailedError`, with the wait that the provider has asked for."""
    try:
        return await answer
    except ProviderError as error:
        raise RuntimeFailedError(AS[error.fault], str(error), wait=error.wait) from error


async def patiently(changes: Callable[[], AsyncIterator[str]], wait: float) -> AsyncIterator[str]:
    """A provider's news; where it breaks off it is begun again after `wait` seconds. Goes on until cancelled."""
    while True:
        try:
            async with aclosing(changes()) as names:  # type: ignore[type-var]  # every provider's is a generator
                async for name in names:
                    yield name
        except ProviderError as error:
            _log.warning("a provider's news broke off", error=str(error))
        except Exception as error:  # noqa: BLE001  # nobody would start it again: no end would be heard of any more
            _log.error("a provider's news can't be understood", exc_info=error)
        await asyncio.sleep(wait)
