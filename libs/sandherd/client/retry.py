"""Retries idempotent requests: a late reply or an unavailable service does not end a transfer."""

import asyncio
from typing import Any, Final

from sandherd.client.errors import HerdError
from sandherd.client.events.protocols import HerdConnection
from sandherd.contracts.errors import Code

PATIENCE: Final = 30.0
"""How long requests without a reply are retried, in seconds."""
REST: Final = 0.2
ANSWER_SECONDS: Final = 15.0
"""The timeout of one request. A worker may delay its reply by 5 s, and the spawner waits for it up to 5 s longer."""


async def request_with_retries(link: HerdConnection, request: Any, *, patience: float = PATIENCE) -> Any:
    """The reply; the request is retried while the service is unavailable or busy. Raises `HerdError`."""
    now = asyncio.get_running_loop().time
    deadline = now() + patience
    while True:
        try:
            return await link.request(request, timeout=ANSWER_SECONDS)
        except HerdError as error:
            if error.problem.code not in {Code.UNAVAILABLE, Code.BUSY} or now() >= deadline:
                raise
        await asyncio.sleep(REST)


class ProgressCheck:
    """Limits how long a sandbox may reply without progress: its replies may be forged.

    At least `minimum` units must be reached every `seconds`, and everything within `longest` seconds. Immediate replies
    are followed by the next request only after `REST` seconds.
    """

    def __init__(self, seconds: float, *, longest: float, minimum: int = 1) -> None:
        self._now = asyncio.get_running_loop().time
        self._seconds, self._minimum = seconds, minimum
        self._reached = 0
        self._deadline, self._end = self._now() + seconds, self._now() + longest

    async def report(self, reached: int) -> None:
        """Report the units reached so far. Raises `HerdError` (`refused`) if there was no progress in time."""
        if reached >= self._reached + self._minimum:
            self._reached, self._deadline = reached, self._now() + self._seconds
        self.check()
        await asyncio.sleep(REST)

    def check(self) -> None:
        """Raise `HerdError` (`refused`) if the time limit has passed."""
        if self._now() >= min(self._deadline, self._end):
            raise HerdError.of(
                Code.REFUSED,
                "the sandbox keeps replying without progress",
                field="sandbox",
                remedy="see its state with `sandherd sandboxes get`, or terminate it",
            )
