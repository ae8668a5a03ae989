"""Converts errors of Daytona to provider errors, and limits the time of calls of its SDK."""

import asyncio
import re
from collections.abc import Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import aiohttp
from daytona import (
    DaytonaAuthenticationError,
    DaytonaError,
    DaytonaNotFoundError,
    DaytonaQueueTimeoutError,
    DaytonaRateLimitError,
    DaytonaTimeoutError,
)

from sandherd.concurrency import cancel_and_wait
from spawner.runtimes.boxes.provider import ProviderError, ProviderFault

_MASK: Final = "********"
_CONFLICT: Final = 409
_SERVER: Final = 500
_NO_REPLY: Final = frozenset({502, 503, 504})
_TOOLBOX_HINT: Final = (
    "Daytona reports the sandbox as started, but the toolbox inside does not respond; it may have been killed because "
    "it was out of memory, and other processes in the sandbox may still run"
)
_FULL: Final = re.compile(
    r"\btotal \w+ (limit|quota) exceeded|no available runners|not enough (quota|room)", re.IGNORECASE
)
"""The errors of Daytona when it has no capacity now. Their status is 400, as that of permanent errors."""
_STATE_CONFLICT: Final = re.compile(
    r"sandbox is (not |already )?(started|stopped|starting|stopping|paused|running|in a? ?valid state)"
    r"|state change in progress|operation in progress",
    re.IGNORECASE,
)
"""The errors for a sandbox in another state than expected. A retry reads its state again."""
_SECRETS: Final = re.compile(r"(?<=bearer )\S+|\bdtn_\w+|(?<=://)[^/@\s]+(?=@)|(?<=[?&]token=)[^&\s]+", re.IGNORECASE)


"""Texts that may be credentials: bearer tokens, keys of Daytona, and user information and tokens in URLs."""


def fault_of(error: DaytonaError) -> ProviderFault:
    """Classify an error of the SDK."""
    status = error.status_code
    if isinstance(error, DaytonaQueueTimeoutError) or _FULL.search(str(error)):
        return ProviderFault.QUOTA
    if isinstance(error, DaytonaNotFoundError):
        return ProviderFault.NOT_FOUND
    if isinstance(error, DaytonaRateLimitError):
        return ProviderFault.RATE_LIMITED
    if isinstance(error, DaytonaTimeoutError):
        return ProviderFault.TIMED_OUT
    if status is None and isinstance(error, DaytonaAuthenticationError):
        return ProviderFault.REFUSED
    is_transient = status is None or status >= _SERVER or status == _CONFLICT or _STATE_CONFLICT.search(str(error))
    return ProviderFault.TRANSIENT if is_transient else ProviderFault.REFUSED


def wait_of(headers: Mapping[str, Any]) -> float | None:
    """The retry delay in seconds that Daytona requests. Each of its rate limiters has headers with its own suffix."""
    numbers = {str(name).lower(): _seconds(value) for name, value in headers.items()}
    delays = [wait for name, wait in numbers.items() if name.startswith("retry-after") and wait is not None]
    if delays:
        return max(delays)
    exhausted = {name.rpartition("-")[2] for name, left in numbers.items() if "-remaining" in name and left == 0}
    resets = {name: wait for name, wait in numbers.items() if name.startswith("x-ratelimit-reset") and wait is not None}
    exhausted_resets = [wait for name, wait in resets.items() if any(name.endswith(limiter) for limiter in exhausted)]
    return max(exhausted_resets or resets.values(), default=None)


def _seconds(value: object) -> float | None:
    try:
        seconds = float(str(value))
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


class DaytonaFaults:
    """Converts errors without revealing a secret. `secrets`: the secrets of this process."""

    def __init__(self, secrets: Collection[str] = ()) -> None:
        self._secrets = [secret for secret in secrets if secret]

    def clean(self, text: str) -> str:
        """A text of Daytona with all secrets masked."""
        for secret in self._secrets:
            text = text.replace(secret, _MASK)
        return _SECRETS.sub(_MASK, text)

    @contextmanager
    def faults(self, what: str, *, inside: bool = False) -> Iterator[None]:
        """Raise errors of the block as `ProviderError`. `what`: the attempted action, for the message.

        `inside`: the request goes to the sandbox's toolbox. The SDK's error is not chained, as it contains headers.
        """
        try:
            yield
        except DaytonaError as error:
            fault = fault_of(error)
            wait = wait_of(error.headers) if fault is ProviderFault.RATE_LIMITED else None
            hint = f"; {_TOOLBOX_HINT}" if inside and error.status_code in _NO_REPLY else ""
            raise ProviderError(fault, self._message(what, error) + hint, wait=wait) from None
        except TimeoutError:
            raise ProviderError(ProviderFault.TIMED_OUT, f"daytona: {what}: timed out") from None
        except (aiohttp.ClientError, OSError) as error:
            message = self.clean(f"daytona: {what}: Daytona can't be reached ({error}); check DAYTONA_API_URL")
            raise ProviderError(ProviderFault.TRANSIENT, message) from None

    def _message(self, what: str, error: DaytonaError) -> str:
        status = f" ({error.status_code})" if error.status_code else ""
        return self.clean(f"daytona: {what}{status}: {error}")


ResultT = TypeVar("ResultT")
_CANCEL_AGAIN_SECONDS: Final = 0.1
"""Seconds until a call that ignores its cancellation is cancelled again."""


async def within(seconds: float, call: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Await a coroutine. After `seconds` cancel it, and raise `TimeoutError` when it has ended."""
    task = asyncio.create_task(call)
    try:
        await asyncio.wait([task], timeout=seconds)
    finally:
        late = not task.done()
        await cancel_and_wait([task], again_after=_CANCEL_AGAIN_SECONDS)
    if late:
        raise TimeoutError
    return task.result()
