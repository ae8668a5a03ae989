"""Ending a sandbox of the process runtime: first with a word, then every process of it, wherever it has gone."""

import asyncio
import signal
from dataclasses import dataclass
from typing import Final

from spawner.runtimes import cgroups, environment, processes, shim
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault
from spawner.runtimes.layout import Place
from spawner.runtimes.processes import ProcessId

_SHIM_SECONDS: Final = 2.0
_START_SECONDS: Final = 15.0
"""How long a sandbox may take until its worker is there: it waits for its network first."""
_KILL_SECONDS: Final = 10.0
_LOOK_AGAIN: Final = 0.005


@dataclass(frozen=True)
class Ending:
    """Finds and ends processes. `namespaced`: each sandbox has a pid namespace, which none of its processes leaves."""

    groups: cgroups.Groups
    namespaced: bool

    async def ask(self, shim_process: ProcessId, grace: float) -> None:
        """SIGTERM to the worker alone, which passes it on as it sees fit; then wait up to `grace` seconds."""
        deadline = asyncio.get_running_loop().time() + grace
        while shim_process.alive() and asyncio.get_running_loop().time() < deadline:
            worker = self.worker(shim_process)
            if worker:
                worker.signal(signal.SIGTERM)
                await processes.gone(shim_process, deadline - asyncio.get_running_loop().time())
                return
            await asyncio.sleep(_LOOK_AGAIN)  # it is only just starting

    def worker(self, shim_process: ProcessId) -> ProcessId | None:
        """The worker below a shim, once it is there."""
        below = processes.children(shim_process.pid)
        if not self.namespaced:
            return processes.find(below[0]) if below else None
        inits = [init for outer in below for init in processes.children(outer)]
        return next((worker for init in inits if (worker := processes.worker_below(init))), None)

    async def until_there(self, place: Place) -> ProcessId:
        """The worker of a sandbox that runs or is about to. Raises `RuntimeFailedError` (`unavailable`) if none is."""
        deadline = asyncio.get_running_loop().time() + _START_SECONDS
        while living := self._living(place):
            if worker := self.worker(living[-1]):
                return worker
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(_LOOK_AGAIN)  # it is only just starting
        raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"{place.name} does not run")

    def first(self, place: Place) -> list[int]:
        """What its shim has started, if it lives: the oldest process of the sandbox."""
        return [pid for claim in self._living(place) for pid in processes.children(claim.pid)]

    async def end_all(self, place: Place) -> None:
        """Kill until nothing is left: first all but the shim, so that it can write down how the worker ended.

        Raises `RuntimeFailedError` (`unavailable`) if something does not end.
        """
        deadline = asyncio.get_running_loop().time() + _KILL_SECONDS
        await self._kill_members(place, deadline)
        for claim in self._living(place):
            if not await processes.gone(claim, _SHIM_SECONDS):
                claim.signal(signal.SIGKILL)
                await processes.gone(claim)
        await self._kill_members(place, deadline)  # what a shim that had just begun has started in the meantime

    async def _kill_members(self, place: Place, deadline: float) -> None:
        # Those seen before are asked for by themselves: where the way to them led through one that is gone now, they
        # are not found any more, though the kernel may still be at ending them.
        known: set[ProcessId] = set()
        while True:
            known |= {process for pid in self.members(place) if (process := processes.find(pid))}
            known = {process for process in known if process.alive()}
            if not known:
                return
            if asyncio.get_running_loop().time() > deadline:
                raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"{place.name}: {len(known)} processes do not end")
            for process in known:
                process.signal(signal.SIGKILL)
            await asyncio.sleep(_LOOK_AGAIN)

    async def clear(self, place: Place) -> None:
        """Kill until nothing is left, then remove the control groups. Raises `RuntimeFailedError`."""
        await self.end_all(place)
        await self.remove_groups(place)

    async def remove_groups(self, place: Place) -> None:
        """Remove the sandbox's control groups, waiting for the kernel to let go of them."""
        deadline = asyncio.get_running_loop().time() + _SHIM_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            if self.groups.remove(place.name):
                return
            await asyncio.sleep(_LOOK_AGAIN)

    def members(self, place: Place) -> set[int]:
        """Every process of the sandbox but its shims."""
        shims = {claim.pid for claim in self._living(place)}
        found = self.groups.members(place.name)
        for pid in shims:
            found |= processes.descendants(pid)
        if not self.namespaced:
            # Without a pid namespace a process may have left its parent, its session or its environment behind.
            found |= processes.marked(environment.MARK, str(place.folder))
        # What a shim itself had just started when it ended is in its session, and in nobody's pid namespace.
        sessions = [claim for claim in self._claims(place) if not self.namespaced or not claim.alive()]
        found |= {pid for claim in sessions for pid in _session_of(claim)}
        return {pid for pid in found - shims if not processes.is_zombie(pid)}

    def _claims(self, place: Place) -> list[ProcessId]:
        return [claim for run in place.runs() if (claim := shim.read_claim(run))]

    def _living(self, place: Place) -> list[ProcessId]:
        return [claim for claim in self._claims(place) if claim.alive()]


def _session_of(leader: ProcessId) -> set[int]:
    """The processes of a shim's session. The kernel keeps its number while the session has any, but no longer."""
    now = processes.stat_of(leader.pid)
    used_again = now is not None and now["started"] != leader.started
    if used_again or leader.boot != processes.boot():
        return set()
    return processes.in_session(leader.pid)
