"""Decides when a driver's task is done: it has sent a result, is idle, and no message is on its way to it."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sandherd_worker.harnesses.base import AgentEnd

_TURN_START_SECONDS: Final = 5.0
"""How long a turn may take to begin after an idle driver has taken a message."""


class Conclusion:
    """Holds the driver's result until it is final.

    When a message interrupts a turn, the turn ends and the message starts the next one: that is not the end of the
    task, although a driver may report it.
    """

    def __init__(self, conclude: Callable[[AgentEnd], None]) -> None:
        self._conclude = conclude
        self._result: AgentEnd | None = None
        self._idle = False
        self._deliveries = 0
        self._turn_alarm: asyncio.TimerHandle | None = None

    def result(self, ended: AgentEnd) -> None:
        """Note the result that the driver has sent. Only the first result counts."""
        self._result = self._result or ended
        self._rest()

    def turn(self, *, working: bool) -> None:
        """Note that a turn has begun or ended."""
        if not working:
            self._rest()
            return
        self._idle = False
        self._cancel_alarm()

    @contextmanager
    def delivering(self) -> Iterator[None]:
        """A context in which a message is on its way to the driver."""
        self._deliveries += 1
        try:
            yield
            if self._idle and self._result is not None:
                self._idle = False
                self._cancel_alarm()
                self._turn_alarm = asyncio.get_running_loop().call_later(_TURN_START_SECONDS, self._rest)
        finally:
            self._deliveries -= 1
            self._check()

    def close(self) -> None:
        """Note that the driver has ended."""
        self._deliveries = 0
        self._rest()

    def _rest(self) -> None:
        self._idle = True
        self._cancel_alarm()
        self._check()

    def _cancel_alarm(self) -> None:
        if self._turn_alarm is not None:
            self._turn_alarm.cancel()
            self._turn_alarm = None

    def _check(self) -> None:
        if self._result is not None and self._idle and not self._deliveries:
            self._conclude(self._result)
