"""Keeping one process alive: it is started again when it ends, sooner the longer it had lived."""

import asyncio
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from sandherd.stack.child import Child, ChildFailedError
from sandherd.stack.process_exit import begin, exit_cause
from sandherd.telemetry import logs

FIRST_WAIT: Final = 0.1
LONGEST_WAIT: Final = 10.0
LIVED: Final = 30.0
"""A process that lived for so many seconds had started well; what ends it is not its start."""
_log: Final = logs.get("supervisor")


class Part(Protocol):
    """Something with a process: the broker, the database, a service."""

    @property
    def child(self) -> Child:
        """Its process."""

    def start(self) -> Coroutine[Any, Any, None]:
        """Start it. Raises `ChildFailedError`."""

    async def stop(self) -> None:
        """End it in order."""


def wait_before_start(failures: int) -> float:
    """How long to wait before the next start, in seconds, after so many short lives in a row."""
    return 0.0 if failures == 0 else float(min(LONGEST_WAIT, FIRST_WAIT * 2 ** (failures - 1)))


class Keeper:
    """Starts a part again whenever it ends. `restarts` counts how often that was.

    `problem` is the exhausted resource that ended it last, with the time; None if it never ended for want of one.
    """

    def __init__(self, name: str, part: Part) -> None:
        self.name = name
        self.part = part
        self.restarts = 0
        self.problem: str | None = None
        self._life = begin(part.child.command.log)
        self._failures = 0
        self._started = time.monotonic()

    async def keep(self) -> None:
        """Watch it, and start it again, until cancelled. It was started before."""
        while True:
            await self.part.child.gone()
            self._judge_life(time.monotonic())
            await asyncio.sleep(wait_before_start(self._failures))
            await self._start_again()

    def _judge_life(self, now: float) -> None:
        self._failures = 0 if now - self._started > LIVED else self._failures + 1
        child = self.part.child
        cause = exit_cause(self._life, child.status, child.command.log)
        if cause:
            self.problem = f"ended at {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC: {cause}"
        _log.warning("ended", process=self.name, status=child.status, failures=self._failures, cause=cause)

    async def _start_again(self) -> None:
        self.restarts += 1
        self._started = time.monotonic()
        self._life = begin(self.part.child.command.log)
        try:
            await self.part.start()
            _log.info("started again", process=self.name, pid=self.part.child.pid, restarts=self.restarts)
        except (ChildFailedError, OSError) as error:
            # It is tried again, later and later; meanwhile `status` shows that it does not live. A full disk also
            # refuses what we write for it: that must not end the care for it.
            _log.error("did not start", process=self.name, error=str(error))
