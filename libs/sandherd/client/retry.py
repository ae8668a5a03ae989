"""Retries idempotent requests: a late reply or an unavailable service does not end a transfer."""

import asyncio
from typing import Any, Final

from sandherd.client.errors import HerdError
from sandherd.client.events.protocols import HerdConnection
from sandherd.contracts.errors import Code

PATIENCE: Final = 30.0
"""How long requests without a reply are retried, in seconds."""
RETRY_DELAY_SECONDS: Final = 0.2
"""The delay before the next request, after a failure or after a reply that does not end the work."""
REPLY_TIMEOUT_SECONDS: Final = 15.0
"""The timeout of one request. A worker may delay its reply by 5 s, and the spawner waits for it up to 5 s longer."""


async def request_with_retries(link: HerdConnection, request: Any, *, patience: float = PATIENCE) -> Any:
    """The reply. Retries for `patience` seconds while the service is unavailable or busy. Raises `HerdError`."""
    now = asyncio.get_running_loop().time
    deadline = now() + patience
    while True:
        try:
            return await link.request(request, timeout=REPLY_TIMEOUT_SECONDS)
        except HerdError as error:
            if error.problem.code not in {Code.UNAVAILABLE, Code.BUSY} or now() >= deadline:
                raise
        await asyncio.sleep(RETRY_DELAY_SECONDS)


class ProgressCheck:
    """Limits how long a sandbox may reply without progress, because its replies may be forged.

    At least `minimum` units must be added every `seconds`, and everything must be done within `total_seconds`.
    """

    def __init__(self, seconds: float, *, total_seconds: float, minimum: int = 1) -> None:
        self._now = asyncio.get_running_loop().time
        self._seconds, self._minimum = seconds, minimum
        self._reached = 0
        self._deadline, self._end = self._now() + seconds, self._now() + total_seconds

    async def report(self, reached: int) -> None:
        """Report the units reached so far, and wait before the next request. Raises `HerdError` as `check` does."""
        if reached >= self._reached + self._minimum:
            self._reached, self._deadline = reached, self._now() + self._seconds
        self.check()
        await asyncio.sleep(RETRY_DELAY_SECONDS)

    def check(self) -> None:
        """Raise `HerdError` (`refused`) if there was no progress in time."""
        if self._now() >= min(self._deadline, self._end):
            raise HerdError.of(
                Code.REFUSED,
                "the sandbox keeps replying without progress",
                field="sandbox",
                remedy="see its state with `sandherd sandboxes get`, or terminate it",
            )
