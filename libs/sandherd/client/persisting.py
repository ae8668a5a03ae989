"""Asking again what is safe to repeat: an answer that is late or a service that is away ends no transfer."""

import asyncio
from typing import Any, Final

from sandherd.client.errors import HerdError
from sandherd.client.link import Link
from sandherd.contracts.errors import Code

PATIENCE: Final = 30.0
"""How long nobody may answer before it is an error, in seconds."""
REST: Final = 0.2
ANSWER_SECONDS: Final = 15.0
"""The spawner waits up to 5 s longer for a worker than the worker may hold its answer back (at most 5 s)."""


async def persist(link: Link, request: Any, *, patience: float = PATIENCE) -> Any:
    """The answer, asked for again while nobody gives one. Raises `HerdError`."""
    now = asyncio.get_running_loop().time
    deadline = now() + patience
    while True:
        try:
            return await link.ask(request, timeout=ANSWER_SECONDS)
        except HerdError as error:
            if error.problem.code not in {Code.UNAVAILABLE, Code.BUSY} or now() >= deadline:
                raise
        await asyncio.sleep(REST)


class Progress:
    """Ends asking a sandbox that answers and gets nowhere: its answers may be made up.

    At least `least` units are reached every `seconds`, and all of it in `longest`. Answers that come at once are asked
    for no more often than every `REST` seconds.
    """

    def __init__(self, seconds: float, *, longest: float, least: int = 1) -> None:
        self._now = asyncio.get_running_loop().time
        self._seconds, self._least = seconds, least
        self._reached = 0
        self._deadline, self._end = self._now() + seconds, self._now() + longest

    async def made(self, reached: int) -> None:
        """So far it is. Raises `HerdError` (`refused`) if it has not gone on in time."""
        if reached >= self._reached + self._least:
            self._reached, self._deadline = reached, self._now() + self._seconds
        self.check()
        await asyncio.sleep(REST)

    def check(self) -> None:
        """Raise `HerdError` (`refused`) if its time is over."""
        if self._now() >= min(self._deadline, self._end):
            raise HerdError.of(
                Code.REFUSED,
                "the sandbox answers again and again, and does not come to an end",
                field="sandbox",
                remedy="look at it with `sandherd sandboxes get`, or end it",
            )
