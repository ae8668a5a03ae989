"""Converts errors of providers to errors of runtimes."""

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from spawner.runtimes.boxes.provider import ProviderError, ProviderFault
from spawner.runtimes.errors import RuntimeFailedError, RuntimeFault

RUNTIME_FAULTS: Final = {
    ProviderFault.NOT_FOUND: RuntimeFault.LOST,
    ProviderFault.QUOTA: RuntimeFault.QUOTA,
    ProviderFault.RATE_LIMITED: RuntimeFault.UNAVAILABLE,
    ProviderFault.REFUSED: RuntimeFault.REFUSED,
    ProviderFault.TRANSIENT: RuntimeFault.UNAVAILABLE,
    ProviderFault.TIMED_OUT: RuntimeFault.UNAVAILABLE,
}
"""The runtime's fault for each fault of a provider."""
ResultT = TypeVar("ResultT")


async def provider_call(call: Awaitable[ResultT]) -> ResultT:
    """Await a provider call. Raises `RuntimeFailedError`."""
    with runtime_errors():
        return await call


@contextmanager
def runtime_errors() -> Iterator[None]:
    """Raise provider errors of the block as `RuntimeFailedError`, with the delay that the provider requested."""
    try:
        yield
    except ProviderError as error:
        raise RuntimeFailedError(RUNTIME_FAULTS[error.fault], str(error), wait=error.wait) from error
