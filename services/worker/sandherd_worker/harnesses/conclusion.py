"""When a driver's task is done: it has said so, it is idle, and nothing is on its way to it."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sandherd_worker.harnesses.base import Ended

_A_TURN_BEGINS: Final = 5.0
"""How long after a message that an idle driver has taken its turn may begin, in seconds."""


class Conclusion:
    """Holds what the driver says came of its task until that is the last word.

    A turn that is interrupted for the sake of a message ends, and the message is the next one: that is no end of
    the task, though a driver may think so.
    """

    def __init__(self, conclude: Callable[[Ended], None]) -> None:
        self._conclude = conclude
        self._result: Ended | None = None
        self._idle = False
        self._giving = 0
        self._expecting: asyncio.TimerHandle | None = None

    def result(self, ended: Ended) -> None:
        """The driver says what came of its task. The first word counts."""
        self._result = self._result or ended
        self._rest()

    def turn(self, *, working: bool) -> None:
        """A turn has begun or is over."""
        if not working:
            self._rest()
            return
        self._idle = False
        self._expect_nothing()

    @contextmanager
    def giving(self) -> Iterator[None]:
        """A message is on its way to the driver."""
        self._giving += 1
        try:
            yield
            if self._idle and self._result is not None:
                self._idle = False
                self._expect_nothing()
                self._expecting = asyncio.get_running_loop().call_later(_A_TURN_BEGINS, self._rest)
        finally:
            self._giving -= 1
            self._look()

    def close(self) -> None:
        """The driver is gone."""
        self._giving = 0
        self._rest()

    def _rest(self) -> None:
        self._idle = True
        self._expect_nothing()
        self._look()

    def _expect_nothing(self) -> None:
        if self._expecting is not None:
            self._expecting.cancel()
            self._expecting = None

    def _look(self) -> None:
        if self._result is not None and self._idle and not self._giving:
            self._conclude(self._result)
