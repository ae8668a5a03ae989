"""Ends a sandbox of the process runtime: first requests the worker to end, then kills every process of the sandbox."""

import asyncio
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandherd import process_signals, processes
from sandherd.processes import ProcessId
from spawner.runtimes import cgroups, environment, shim
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault
from spawner.runtimes.layout import SandboxDirectory

_SHIM_TIMEOUT_SECONDS: Final = 2.0
"""The timeout for a shim to end after its worker, and for the kernel to release a sandbox's control groups."""
_START_TIMEOUT_SECONDS: Final = 15.0
"""How long a sandbox may take until its worker runs. A sandbox first waits for its network."""
_KILL_TIMEOUT_SECONDS: Final = 10.0
"""The timeout for all processes of a sandbox to end after SIGKILL."""
_POLL_SECONDS: Final = 0.005
_PID_IN_SANDBOX: Final = 2
"""The worker's pid in its sandbox's pid namespace: bubblewrap's reaper has 1, and starts the worker first."""


@dataclass(frozen=True)
class Termination:
    """Finds and ends the processes of sandboxes.

    `namespaced`: whether each sandbox has a pid namespace, which its processes can't leave.
    """

    groups: cgroups.ControlGroups
    namespaced: bool

    async def terminate_worker(self, shim_process: ProcessId, grace: float) -> None:
        """Send SIGTERM to the worker only, which stops its agent; then wait up to `grace` seconds."""
        deadline = asyncio.get_running_loop().time() + grace
        while shim_process.alive() and asyncio.get_running_loop().time() < deadline:
            worker = self.worker(shim_process)
            if worker:
                worker.signal(signal.SIGTERM)
                await process_signals.wait_ended(shim_process, deadline - asyncio.get_running_loop().time())
                return
            await asyncio.sleep(_POLL_SECONDS)  # the worker is still starting

    def worker(self, shim_process: ProcessId) -> ProcessId | None:
        """The worker below a shim, or None if it has not started."""
        below = processes.children(shim_process.pid)
        if not self.namespaced:
            return processes.find(below[0]) if below else None
        # Of the shim's children, bubblewrap is the parent of the first process (`init`) in the pid namespace.
        inits = [init for outer in below for init in processes.children(outer)]
        return next((worker for init in inits if (worker := worker_below(init))), None)

    async def wait_for_worker(self, directory: SandboxDirectory) -> ProcessId:
        """Wait for the worker of a running or starting sandbox. Raises `RuntimeFailedError` (`unavailable`)."""
        deadline = asyncio.get_running_loop().time() + _START_TIMEOUT_SECONDS
        while shims := self._running_shims(directory):
            if worker := self.worker(shims[-1]):
                return worker
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(_POLL_SECONDS)  # the worker is still starting
        raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"{directory.name} is not running")

    def oldest_processes(self, directory: SandboxDirectory) -> list[int]:
        """The children of the sandbox's running shim, which are its oldest processes; empty if no shim runs."""
        return [pid for claim in self._running_shims(directory) for pid in processes.children(claim.pid)]

    async def end_all(self, directory: SandboxDirectory) -> None:
        """Kill all processes, the shim last, so that it can record how the worker ended.

        Raises `RuntimeFailedError` (`unavailable`) if some do not end.
        """
        deadline = asyncio.get_running_loop().time() + _KILL_TIMEOUT_SECONDS
        shims = self._running_shims(directory)
        await self._kill_members(directory, deadline)
        for claim in shims:
            if not await process_signals.wait_ended(claim, _SHIM_TIMEOUT_SECONDS):
                claim.signal(signal.SIGKILL)
                await process_signals.wait_ended(claim)
        if shims:  # a starting shim may have started processes meanwhile
            await self._kill_members(directory, deadline)

    async def _kill_members(self, directory: SandboxDirectory, deadline: float) -> None:
        # Known processes are checked individually, because `members` may no longer find them when their parent has
        # ended, although the kernel may not have ended them yet.
        known: set[ProcessId] = set()
        while True:
            known |= {process for pid in self.members(directory) if (process := processes.find(pid))}
            known = {process for process in known if process.alive()}
            if not known:
                return
            if asyncio.get_running_loop().time() > deadline:
                raise RuntimeFailedError(
                    RuntimeFault.UNAVAILABLE, f"{directory.name}: {len(known)} processes do not end"
                )
            for process in known:
                process.signal(signal.SIGKILL)
            await asyncio.sleep(_POLL_SECONDS)

    async def clear(self, directory: SandboxDirectory) -> None:
        """Kill all processes, then remove the control groups. Raises `RuntimeFailedError`."""
        await self.end_all(directory)
        await self.remove_groups(directory)

    async def remove_groups(self, directory: SandboxDirectory) -> None:
        """Remove the sandbox's control groups, waiting until the kernel releases them."""
        deadline = asyncio.get_running_loop().time() + _SHIM_TIMEOUT_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            if self.groups.remove(directory.name):
                return
            await asyncio.sleep(_POLL_SECONDS)

    def members(self, directory: SandboxDirectory) -> set[int]:
        """Every process of the sandbox except its shims."""
        shims = {claim.pid for claim in self._running_shims(directory)}
        members = self.groups.members(directory.name)
        for pid in shims:
            members |= processes.descendants(pid)
        if not self.namespaced:
            # Processes are found in three ways, because a process may have changed its parent, session or environment.
            members |= processes.marked(environment.MARK, str(directory.folder))
        # A process that a shim started just before the shim ended is in the shim's session, not in a new pid namespace.
        sessions = [claim for claim in self._claims(directory) if not self.namespaced or not claim.alive()]
        members |= {pid for claim in sessions for pid in _session_of(claim)}
        return {pid for pid in members - shims if not processes.is_zombie(pid)}

    def _claims(self, directory: SandboxDirectory) -> list[ProcessId]:
        return [claim for run in directory.runs() if (claim := shim.read_claim(run))]

    def _running_shims(self, directory: SandboxDirectory) -> list[ProcessId]:
        return [claim for claim in self._claims(directory) if claim.alive()]


def worker_below(init: int) -> ProcessId | None:
    """The worker in the pid namespace whose first process is `init`, or None if it has not started."""
    for pid in processes.children(init):
        with suppress(OSError):
            status = Path("/proc", str(pid), "status").read_text(errors="replace")
            line = next((line for line in status.splitlines() if line.startswith("NSpid:")), "")
            if line.split()[-1:] == [str(_PID_IN_SANDBOX)]:
                return processes.find(pid)
    return None


def _session_of(leader: ProcessId) -> set[int]:
    """The processes of a shim's session. The shim's pid can be reused only when its session has no process."""
    now = processes.stat_of(leader.pid)
    pid_reused = now is not None and now["started"] != leader.started
    if pid_reused or leader.boot != processes.boot():
        return set()
    return processes.in_session(leader.pid)
