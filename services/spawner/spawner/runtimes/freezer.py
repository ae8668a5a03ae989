"""Freezes a sandbox with the kernel's cgroup freezer if there is one, else with SIGSTOP to each process."""

import asyncio
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sandherd import processes
from spawner.runtimes import cgroups
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault
from spawner.runtimes.layout import SandboxDirectory
from spawner.runtimes.termination import Termination

_FREEZE_TIMEOUT_SECONDS: Final = 5.0
"""The timeout for all processes of a sandbox to freeze."""
_POLL_SECONDS: Final = 0.005


@dataclass(frozen=True)
class Freezer:
    """Freezes and thaws all processes of a sandbox. Both methods are idempotent."""

    groups: cgroups.ControlGroups
    termination: Termination

    async def freeze(self, directory: SandboxDirectory) -> None:
        """Freeze all processes, and wait until they are frozen.

        Raises `RuntimeFailedError` (`unavailable`) after a timeout, when the processes were thawed again.
        """
        deadline = asyncio.get_running_loop().time() + _FREEZE_TIMEOUT_SECONDS
        while not self._is_frozen(directory):
            if asyncio.get_running_loop().time() > deadline:
                await self.thaw(directory)
                raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"{directory.name} could not be frozen")
            self._freeze(directory)
            await asyncio.sleep(_POLL_SECONDS)

    async def thaw(self, directory: SandboxDirectory) -> None:
        """Thaw all processes. Does nothing if the sandbox's groups no longer exist."""
        if self.groups.freezer:
            with suppress(OSError):
                self.groups.set_frozen(directory.name, frozen=False)
            return
        for pid in self.termination.members(directory):
            if (process := processes.find(pid)) and processes.is_stopped(pid):
                process.signal(signal.SIGCONT)

    def is_freeze_requested(self, directory: SandboxDirectory) -> bool | None:
        """Whether the sandbox is frozen or a freeze was requested; None if unknown.

        Without a freezer, the result depends on the oldest processes, which are the children of the shim. They are
        stopped before all others, and an isolated agent can't stop them.
        """
        if self.groups.freezer:
            return self.groups.is_freeze_requested(directory.name)
        oldest = self.termination.oldest_processes(directory)
        return all(processes.is_stopped(pid) and not processes.is_zombie(pid) for pid in oldest) if oldest else None

    def _freeze(self, directory: SandboxDirectory) -> None:
        if self.groups.freezer:
            try:
                self.groups.set_frozen(directory.name, frozen=True)
            except OSError as error:
                raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"{directory.name}: {error}") from error
            return
        # The lowest pid is first, so that a parent is stopped before the processes that it starts.
        for pid in sorted(self.termination.members(directory)):
            if process := processes.find(pid):
                process.signal(signal.SIGSTOP)

    def _is_frozen(self, directory: SandboxDirectory) -> bool:
        if self.groups.freezer:
            return self.groups.is_frozen(directory.name)
        return all(processes.is_stopped(pid) for pid in self.termination.members(directory))
