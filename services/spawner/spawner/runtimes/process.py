"""The process runtime: each sandbox is a tree of processes on this host, isolated by bubblewrap where that is allowed.

Sandboxes live on when the spawner ends, and are found again by what lies in their directories.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sandherd.bus.together import end
from sandherd.telemetry import logs
from spawner.runtimes import cgroups, entering, network, own_files, processes, shim, warming
from spawner.runtimes.addresses import Address
from spawner.runtimes.commands import Command, File, Ran
from spawner.runtimes.contract import (
    Capabilities,
    RunEnd,
    RuntimeFailedError,
    RuntimeFault,
    SandboxPlan,
    Seen,
    WarmPlan,
)
from spawner.runtimes.ending import Ending
from spawner.runtimes.freezing import Freezing
from spawner.runtimes.isolation import Walls
from spawner.runtimes.layout import Layout, Place
from spawner.runtimes.processes import ProcessId
from spawner.runtimes.run_files import Run
from spawner.runtimes.starting import Start, Starting, refuse_image

_log: Final = logs.get("runtime.process")


@dataclass
class ProcessRuntime:
    """See `spawner.runtimes.contract.Runtime`. Made by `opening.open_runtime`."""

    layout: Layout
    worker: tuple[str, ...]
    walls: Walls | None
    """What isolates the sandboxes; None: nothing does."""
    groups: cgroups.Groups
    capabilities: Capabilities
    toolchains: Path | None = None
    """Where the SDKs of agents are."""
    refusal: str | None = None
    """Why no sandbox may be started, with what to change."""
    networks: network.Networks = field(default_factory=network.Networks)
    name: str = "process"
    _tell: Callable[[str], None] = field(default=lambda _sandbox: None)
    _watches: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    @property
    def ending(self) -> Ending:
        """What finds and ends this runtime's processes."""
        return Ending(self.groups, namespaced=self.walls is not None)

    @property
    def freezing(self) -> Freezing:
        """What lets them stand still."""
        return Freezing(self.groups, self.ending)

    @property
    def starting(self) -> Starting:
        """What starts them."""
        counted = self.capabilities.processes == "rlimit"
        own = (counted, self.layout.disks, self.toolchains, self.networks)
        return Starting(self.worker, self.walls, self.groups, *own)

    def on_exit(self, tell: Callable[[str], None]) -> None:
        """From now on `tell(unit)` is called when a worker has ended; also for those that are running already."""
        self._tell = tell
        for place in self.layout.places():
            self._watch(place)

    async def prepare(self, plan: WarmPlan) -> None:
        """Start a worker that waits for its identity, and return when it waits."""
        self._refuse_weak()
        place = self.layout.place(plan.unit)
        if not place.was_claimed():
            await asyncio.to_thread(self.starting.furnish_warm, place, plan)
            await self._start(place, place.first_run(), self.starting.warm_start(place, plan))
        await warming.until_waiting(place, lambda: self._shim(place) is not None)

    async def create(self, plan: SandboxPlan) -> None:
        """Make the sandbox and start its worker, or tell one that waits to begin, unless that was done."""
        self._refuse_weak()
        refuse_image(plan)
        place = self.layout.place(plan.unit)
        await asyncio.to_thread(self.starting.furnish, place, plan)
        # Not "the next run": another asking for the same sandbox may see its run claimed at any moment.
        run = place.first_run()
        if place.warm.exists():
            variables = self.starting.variables(place, plan)
            if await warming.begin(place, variables, lambda: self._shim(place) is not None):
                return
            run = place.new_run()
        elif place.was_claimed():
            self._watch(place)
            return
        await self._start(place, run, self.starting.cold_start(place, plan))

    async def recover(self, plan: SandboxPlan) -> None:
        """Start the worker once more, after ending whatever the dead one left running."""
        place = self._known(plan.unit)
        if self._shim(place):
            return
        await self.freezing.thaw(place)
        await self.ending.end_all(place)
        await self.starting.refurnish(place, plan)
        await self._start(place, place.new_run(), self.starting.recovery(place, plan))

    async def pause(self, unit: str) -> None:
        """Freeze every process of the sandbox."""
        await self.freezing.freeze(self._known(unit))

    async def resume(self, unit: str) -> None:
        """Let it go on."""
        await self.freezing.thaw(self._known(unit))

    async def stop(self, unit: str, grace: float) -> None:
        """Ask the worker to end, wait, then end every process of the sandbox."""
        place = self.layout.place(unit)
        await self.freezing.thaw(place)
        shim_process = self._shim(place)
        if shim_process:
            await self.ending.ask(shim_process, grace)
        await self.ending.end_all(place)

    async def look(self, unit: str) -> Seen | None:
        """The sandbox as it is, or None if there is nothing of it."""
        place = self.layout.place(unit)
        if not place.exists():
            return Seen(unit, alive=True) if self.groups.members(unit) else None
        runs = [run for run in place.runs() if run.claim.exists()]
        alive = self._shim(place) is not None
        ran = len(runs) or int(self.layout.disks.is_missing(place.folder))
        seen = Seen(unit, alive, runs=ran, project=place.read_label(), since=int(place.folder.stat().st_ctime))
        if alive:
            return replace(seen, frozen=self.freezing.is_told(place))
        if not runs:
            return seen
        end = RunEnd(
            shim.read_exit(runs[-1]),
            out_of_memory=self.groups.kills(unit) > 0,
            last_line=shim.read_last_line(runs[-1]),
        )
        return replace(seen, end=end)

    async def find_all(self) -> list[Seen]:
        """All sandboxes with a directory or a control group on this host."""
        names = {place.name for place in self.layout.places()} | self.groups.sandboxes()
        found = [await self.look(name) for name in sorted(names)]
        return [seen for seen in found if seen]

    async def remove(self, unit: str) -> None:
        """End what still runs, and remove directory and control groups."""
        place = self.layout.place(unit)
        await self.freezing.thaw(place)
        await self.ending.clear(place)
        if self.walls:
            await asyncio.to_thread(self.walls.disown, place)
        await asyncio.to_thread(self.layout.remove, unit)

    async def run(self, unit: str, command: Command) -> Ran:
        """Run a command in the sandbox's namespaces, control groups and limits, beside its worker."""
        place = self._known(unit)
        if self.freezing.is_told(place):
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"{unit} stands still")
        worker = await self.ending.until_there(place)
        return await entering.run(self.starting.entry(place, worker), command)

    async def put(self, unit: str, files: Collection[File]) -> None:
        """Put files into the sandbox's own folders."""
        await asyncio.to_thread(own_files.put, self._known(unit), files)

    async def read(self, unit: str, path: str, limit: int) -> bytes | None:
        """A file of the sandbox's own folders."""
        return await asyncio.to_thread(own_files.read, self._known(unit), path, limit)

    async def address(self, unit: str, port: int) -> Address:
        """Where a port of the sandbox is, for this host alone."""
        return Address(f"http://127.0.0.1:{await network.published(self._known(unit), port)}")

    async def keep(self, unit: str) -> None:
        """End what still runs, and put the directory aside."""
        place = self.layout.place(unit)
        await self.ending.clear(place)
        await self.layout.disks.mend(place.folder)  # its secrets are removed
        kept = await asyncio.to_thread(self.layout.keep, unit)
        _log.warning("kept what a sandbox could not say", sandbox=unit, folder=str(kept))

    async def find_kept(self) -> list[str]:
        """The sandboxes whose directories were put aside."""
        return self.layout.kept()

    async def take_back(self, unit: str) -> None:
        """Put the directory back where sandboxes live."""
        await asyncio.to_thread(self.layout.take_back, unit)

    async def leave(self, unit: str) -> None:
        """Give its user its files, unmount them, and remove its control groups unless they alone say what killed it."""
        if not self.groups.kills(unit):
            await self.ending.remove_groups(self.layout.place(unit))
        await asyncio.to_thread(self.starting.leave, self.layout.place(unit), Place(self.layout.aside / unit))

    async def close(self) -> None:
        """Stop watching; the sandboxes live on."""
        await end(list(self._watches.values()))
        self._watches.clear()
        self.groups.close()

    async def _start(self, place: Place, run: Run, start: Start) -> None:
        self._refuse_weak()
        for gap in self.capabilities.gaps:
            _log.warning("sandbox starts with weaker isolation", sandbox=place.name, reason=gap)
        await self.starting.spawn_and_claim(place, run, start)
        self._watch(place)

    def _refuse_weak(self) -> None:
        """Raise `RuntimeFailedError` where this host can't isolate sandboxes and the settings do not allow that."""
        if self.refusal:
            raise RuntimeFailedError(RuntimeFault.REFUSED, self.refusal)

    def _known(self, unit: str) -> Place:
        place = self.layout.place(unit)
        if not place.exists():
            raise RuntimeFailedError(RuntimeFault.LOST, f"there is nothing of {unit} on this host")
        return place

    def _shim(self, place: Place) -> ProcessId | None:
        """The shim of the last run, while it lives."""
        runs = place.runs()
        claimed = shim.read_claim(runs[-1]) if runs else None
        return claimed if claimed and claimed.alive() else None

    def _watch(self, place: Place) -> None:
        process = self._shim(place)
        watch = self._watches.get(place.name)
        if process and (watch is None or watch.done()):
            self._watches[place.name] = asyncio.create_task(self._tell_end(place.name, process))

    async def _tell_end(self, unit: str, process: ProcessId) -> None:
        await processes.gone(process)
        processes.reap(process.pid)
        self._watches.pop(unit, None)
        self._tell(unit)
