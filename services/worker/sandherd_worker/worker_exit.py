"""The end of the worker: requests to end before the agent has ended, and exit statuses."""

import asyncio
import time
from enum import IntEnum
from typing import Final

STOPPED: Final = "stopped"
REFUSED: Final = "refused"
SPOOL: Final = "spool"


class StopRequest:
    """Records that the worker must end: after SIGTERM, for a refused credential, or for a spool that can't be written.

    The first reason applies.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._requested = asyncio.Event()
        self._terminated = asyncio.Event()
        self._terminated_at = 0.0

    def request(self, reason: str) -> None:
        """Request that the worker ends, for this reason."""
        self.reason = self.reason or reason
        self._requested.set()

    def terminate(self) -> None:
        """Handle SIGTERM: the runtime's grace period begins."""
        if not self._terminated.is_set():
            self._terminated_at = asyncio.get_running_loop().time()
            self._terminated.set()
        self.request(STOPPED)

    async def wait(self) -> None:
        """Wait until the worker must end."""
        await self._requested.wait()

    def past(self, grace: float) -> bool:
        """Whether `grace` seconds have passed since SIGTERM; False without one. Thread-safe."""
        return self._terminated.is_set() and time.monotonic() >= self._terminated_at + grace

    async def terminated(self, grace: float) -> None:
        """Wait until `grace` seconds have passed since SIGTERM; forever without one."""
        await self._terminated.wait()
        left = self._terminated_at + grace - asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, left))


class ExitCode(IntEnum):
    """The worker's exit statuses. After one in `FINAL` nothing is to be recovered; after others `--recover` is used."""

    DRAINED = 0
    """The broker has acknowledged all events; the sandbox's directory may be removed."""
    INTERNAL = 1
    """The worker failed with an unexpected error."""
    USAGE = 2
    """The environment or the task file is invalid; nothing was published."""
    NOT_DRAINED = 3
    """The worker was stopped, and the broker has not acknowledged all records in time."""
    REFUSED = 4
    """The spawner refused a credential: the sandbox has ended, or a newer attempt has replaced it."""
    SPOOL = 5
    """The spool could not be opened or written: a full or broken disk."""
    BUSY = 6
    """Another worker holds this state directory."""
    NOT_STARTED = 7
    """The worker was not admitted, or was ended before: nothing was published, and nothing is to be recovered."""
    DISK_REFUSED = 8
    """As `DRAINED`, but a sandbox without a task ended because its spool could not be written."""


FINAL: Final = frozenset({ExitCode.DRAINED, ExitCode.USAGE, ExitCode.NOT_STARTED, ExitCode.DISK_REFUSED})
"""The exit statuses after which there is nothing to recover."""


def without_task(status: ExitCode, *, disk_refused: bool) -> ExitCode:
    """The exit status of a sandbox without a task. It has no final event for a full disk, so the status shows it."""
    return ExitCode.DISK_REFUSED if disk_refused and status is ExitCode.DRAINED else status
