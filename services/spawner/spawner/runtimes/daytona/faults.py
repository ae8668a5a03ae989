"""What Daytona says went wrong, in a provider's words. All pure, but for the one place where errors are caught."""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import aiohttp
from daytona import (
    DaytonaAuthenticationError,
    DaytonaError,
    DaytonaNotFoundError,
    DaytonaQueueTimeoutError,
    DaytonaRateLimitError,
    DaytonaTimeoutError,
)

from spawner.runtimes.boxes.provider import ProviderError, ProviderFault

_MASK: Final = "********"
_CONFLICT: Final = 409
_SERVER: Final = 500
_NO_ANSWER: Final = frozenset({502, 503, 504})
_SILENT: Final = (
    "Daytona calls the sandbox started, but the toolbox inside does not answer; it may have been ended for want of "
    "memory, and what runs beside it may run on"
)
_FULL: Final = re.compile(
    r"\btotal \w+ (limit|quota) exceeded|no available runners|not enough (quota|room)", re.IGNORECASE
)
"""What Daytona answers with 400 where there is no room for it now; it has no other mark than its words."""
_STATE: Final = re.compile(
    r"sandbox is (not |already )?(started|stopped|starting|stopping|paused|running|in a? ?valid state)"
    r"|state change in progress|operation in progress",
    re.IGNORECASE,
)
"""The sandbox stands otherwise than was thought: another look at it decides anew."""
_SECRETS: Final = re.compile(r"(?<=bearer )\S+|\bdtn_\w+|(?<=://)[^/@\s]+(?=@)|(?<=[?&]token=)[^&\s]+", re.IGNORECASE)


def fault_of(error: DaytonaError) -> ProviderFault:
    """What kind of fault an error of the SDK is."""
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
    """For how many seconds Daytona asks not to be asked; each of its throttlers says so in a header of its own."""
    found = {str(name).lower(): _seconds(value) for name, value in headers.items()}
    asked = [wait for name, wait in found.items() if name.startswith("retry-after") and wait is not None]
    if asked:
        return max(asked)
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


class Telling:
    """Says what went wrong without a secret. `secrets` are those that this process has."""

    def __init__(self, secrets: Collection[str] = ()) -> None:
        self._secrets = [secret for secret in secrets if secret]

    def clean(self, text: str) -> str:
        """A text of Daytona's as it may be told."""
        for secret in self._secrets:
            text = text.replace(secret, _MASK)
        return _SECRETS.sub(_MASK, text)

    @contextmanager
    def faults(self, what: str, *, inside: bool = False) -> Iterator[None]:
        """Whatever goes wrong in here is raised as `ProviderError`, which names `what` was tried.

        `inside`: it is asked of what runs in the sandbox. The SDK's own error is left behind: it holds headers.
        """
        try:
            yield
        except DaytonaError as error:
            fault = fault_of(error)
            wait = wait_of(error.headers) if fault is ProviderFault.RATE_LIMITED else None
            silent = f"; {_SILENT}" if inside and error.status_code in _NO_ANSWER else ""
            raise ProviderError(fault, self._told(what, error) + silent, wait=wait) from None
        except TimeoutError:
            raise ProviderError(ProviderFault.TIMED_OUT, f"daytona: {what}: no answer in time") from None
        except (aiohttp.ClientError, OSError) as error:
            told = self.clean(f"daytona: {what}: it can't be reached ({error}); see DAYTONA_API_URL")
            raise ProviderError(ProviderFault.TRANSIENT, told) from None

    def _told(self, what: str, error: DaytonaError) -> str:
        status = f" ({error.status_code})" if error.status_code else ""
        return self.clean(f"daytona: {what}{status}: {error}")
