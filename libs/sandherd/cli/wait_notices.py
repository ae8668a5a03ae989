"""Says on standard error why a task that is followed makes no progress."""

import asyncio
from typing import Final

from sandherd.cli.stderr import print_error
from sandherd.client.errors import HerdError, ServiceUnavailableError
from sandherd.client.events.sequencer import Event
from sandherd.client.herd import Herd
from sandherd.client.tasks.wait_reasons import progress_problem
from sandherd.contracts.events.agent import AgentStarted

QUIET_SECONDS: Final = 4.0
"""How long a task has to be without events before the reason is requested, and the interval of these requests."""


class WaitNotices:
    """Requests the reason while no events are received, and prints it when it has changed."""

    def __init__(self, herd: Herd, task: str) -> None:
        self._herd = herd
        self._task = task
        self._quiet = True
        self._agent_works = False
        self._last: str | None = None

    def received(self, event: Event) -> None:
        """Note an event."""
        self._quiet = False
        self._agent_works = self._agent_works or event.type == AgentStarted.type

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            self._quiet = True
            await asyncio.sleep(QUIET_SECONDS)
            if self._quiet:
                self._notice(await self._reason())

    def _notice(self, reason: str | None) -> None:
        if reason is not None and reason != self._last:
            print_error(f"{self._task} waits: {reason}")
        self._last = reason

    async def _reason(self) -> str | None:
        """The reason, if it is known. Without a connection the follower reports the error."""
        try:
            return await progress_problem(self._herd.connection.request, self._task)
        except ServiceUnavailableError as error:
            if self._agent_works:  # which it does without the spawner
                return None
            return f"{error.problem.message}; the task is stored and starts when it is back: see `sandherd status`"
        except HerdError:
            return None
