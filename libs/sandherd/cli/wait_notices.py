"""Prints on standard error why a followed task makes no progress."""

import asyncio
from typing import Final

from sandherd.cli.stderr import print_error
from sandherd.client.errors import HerdError, ServiceUnavailableError
from sandherd.client.events.sequencer import Event
from sandherd.client.herd import Herd
from sandherd.client.tasks.wait_reasons import progress_problem
from sandherd.contracts.events.agent import AgentStarted

QUIET_SECONDS: Final = 4.0
"""How long a task has no events before the reason is requested, and the interval between these requests."""


class WaitNotices:
    """Requests the reason why a task waits, while it has no events. Prints each new reason."""

    def __init__(self, herd: Herd, task: str) -> None:
        self._herd = herd
        self._task = task
        self._has_no_events = True
        self._agent_works = False
        self._last: str | None = None

    def record_event(self, event: Event) -> None:
        """Record that an event was received."""
        self._has_no_events = False
        self._agent_works = self._agent_works or event.type == AgentStarted.type

    async def run(self) -> None:
        """Request and print reasons until cancelled."""
        while True:
            self._has_no_events = True
            await asyncio.sleep(QUIET_SECONDS)
            if self._has_no_events:
                self._print_new_reason(await self._reason())

    def _print_new_reason(self, reason: str | None) -> None:
        if reason is not None and reason != self._last:
            print_error(f"{self._task} waits: {reason}")
        self._last = reason

    async def _reason(self) -> str | None:
        """The reason; None if it is not known. If the connection is lost, the follower of events reports it."""
        try:
            return await progress_problem(self._herd.connection.request, self._task)
        except ServiceUnavailableError as error:
            if self._agent_works:  # an agent works without the spawner
                return None
            return f"{error.problem.message}; the task is stored and starts when it is back: see `sandherd status`"
        except HerdError:
            return None
