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
_NO_ANSWER: Final = frozenset({502, 503, 504})
_SILENT: Final = (
    "Daytona reports the sandbox as started, but the toolbox inside does not respond; it may have been killed because "
    "it was out of memory, and other processes in the sandbox may still run"
)
_FULL: Final = re.compile(
    r"\btotal \w+ (limit|quota) exceeded|no available runners|not enough (quota|room)", re.IGNORECASE
)
"""Daytona's errors (with 400) when it has no capacity now; only the text identifies them."""
_STATE: Final = re.compile(
    r"sandbox is (not |already )?(started|stopped|starting|stopping|paused|running|in a? ?valid state)"
    r"|state change in progress|operation in progress",
    re.IGNORECASE,
)
"""The sandbox is in another state than expected: a retry reads its state again."""
_SECRETS: Final = re.compile(r"(?<=bearer )\S+|\bdtn_\w+|(?<=://)[^/@\s]+(?=@)|(?<=[?&]token=)[^&\s]+", re.IGNORECASE)


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
    passing = status is None or status >= _SERVER or status == _CONFLICT or _STATE.search(str(error))
    return ProviderFault.TRANSIENT if passing else ProviderFault.REFUSED


def wait_of(headers: Mapping[str, Any]) -> float | None:
    """The retry delay in seconds that Daytona requests; each of its rate limiters has its own header."""
    found = {str(name).lower(): _seconds(value) for name, value in headers.items()}
    call = [wait for name, wait in found.items() if name.startswith("retry-after") and wait is not None]
    if call:
        return max(call)
    spent = {name.rpartition("-")[2] for name, left in found.items() if "-remaining" in name and left == 0}
    resets = {name: wait for name, wait in found.items() if name.startswith("x-ratelimit-reset") and wait is not None}
    ended = [wait for name, wait in resets.items() if any(name.endswith(throttler) for throttler in spent)]
    return max(ended or resets.values(), default=None)


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
        """A text of Daytona's with all secrets masked."""
        for secret in self._secrets:
            text = text.replace(secret, _MASK)
        return _SECRETS.sub(_MASK, text)

    @contextmanager
    def faults(self, what: str, *, inside: bool = False) -> Iterator[None]:
        """Raise errors of the block as `ProviderError`; the message contains `what` was attempted.

        `inside`: the request goes to the sandbox's toolbox. The SDK's error is not chained, as it contains headers.
        """
        try:
            yield
        except DaytonaError as error:
            fault = fault_of(error)
            wait = wait_of(error.headers) if fault is ProviderFault.RATE_LIMITED else None
            silent = f"; {_SILENT}" if inside and error.status_code in _NO_ANSWER else ""
            raise ProviderError(fault, self._message(what, error) + silent, wait=wait) from None
        except TimeoutError:
            raise ProviderError(ProviderFault.TIMED_OUT, f"daytona: {what}: timed out") from None
        except (aiohttp.ClientError, OSError) as error:
            message = self.clean(f"daytona: {what}: Daytona can't be reached ({error}); check DAYTONA_API_URL")
            raise ProviderError(ProviderFault.TRANSIENT, message) from None

    def _message(self, what: str, error: DaytonaError) -> str:
        status = f" ({error.status_code})" if error.status_code else ""
        return self.clean(f"daytona: {what}{status}: {error}")


AnswerT = TypeVar("AnswerT")
_AGAIN: Final = 0.1
"""Seconds until a call that ignores its cancellation is cancelled again."""


async def within(seconds: float, call: Coroutine[Any, Any, AnswerT]) -> AnswerT:
    """Await with a timeout. Raises `TimeoutError` after `seconds`; the coroutine was cancelled and has ended then."""
    task = asyncio.create_task(call)
    try:
        await asyncio.wait([task], timeout=seconds)
    finally:
        late = not task.done()
        await cancel_and_wait([task], again_after=_AGAIN)
    if late:
        raise TimeoutError
    return task.result()
