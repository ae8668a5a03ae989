"""Restarts a process whenever it ends, with a backoff that grows each time that it ends soon after its start."""

import asyncio
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from sandherd.backoff import Backoff
from sandherd.stack.child_process import ChildFailedError, ChildProcess
from sandherd.stack.process_exit import exit_cause, process_life
from sandherd.telemetry import logs

BACKOFF: Final = Backoff(base=0.1, cap=10.0, jitter=0)
_STABLE_SECONDS: Final = 30.0
"""If a process ran for longer than this, in seconds, its end does not count as a failed start."""
_log: Final = logs.get("process_monitor")


class StackPart(Protocol):
    """A part of the stack with a process: the broker, the database, a service."""

    @property
    def child(self) -> ChildProcess:
        """The process of the part."""

    def start(self) -> Coroutine[Any, Any, None]:
        """Start the part. Raises `ChildFailedError`."""

    async def stop(self) -> None:
        """Stop the part gracefully."""


def wait_before_start(failures: int) -> float:
    """The backoff before the next start, in seconds, after this many failed starts in a row."""
    return 0.0 if failures == 0 else BACKOFF.delay(failures - 1)


class ProcessMonitor:
    """Restarts a part whenever it ends. `restarts` is the number of restarts.

    `problem` is the exhausted resource that ended the part last, with the time; None if no such resource is known.
    """

    def __init__(self, name: str, part: StackPart) -> None:
        self.name = name
        self.part = part
        self.restarts = 0
        self.problem: str | None = None
        self._life = process_life(part.child.command.log)
        self._failures = 0
        self._started = time.monotonic()

    async def run(self) -> None:
        """Watch the part, and restart it until cancelled. It must have been started before."""
        while True:
            await self.part.child.wait_ended()
            self._handle_exit(time.monotonic())
            await asyncio.sleep(wait_before_start(self._failures))
            await self._start_again()

    def _handle_exit(self, now: float) -> None:
        self._failures = 0 if now - self._started > _STABLE_SECONDS else self._failures + 1
        child = self.part.child
        cause = exit_cause(self._life, child.status, child.command.log)
        if cause:
            self.problem = f"ended at {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC: {cause}"
        _log.warning("process ended", process=self.name, status=child.status, failures=self._failures, cause=cause)

    async def _start_again(self) -> None:
        self.restarts += 1
        self._started = time.monotonic()
        self._life = process_life(self.part.child.command.log)
        try:
            await self.part.start()
            _log.info("process restarted", process=self.name, pid=self.part.child.pid, restarts=self.restarts)
        except (ChildFailedError, OSError) as error:
            # It is retried with a growing backoff; meanwhile `status` shows that it is not running. The error may
            # also be that of a full disk, which must not end the monitoring.
            _log.error("process restart failed", process=self.name, error=str(error))
