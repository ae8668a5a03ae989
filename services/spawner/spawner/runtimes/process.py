"""The process runtime: a sandbox is a tree of processes on this host, which outlives the spawner (see `isolation`)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sandherd import process_signals
from sandherd.concurrency import cancel_and_wait
from sandherd.processes import ProcessId
from sandherd.telemetry import logs
from spawner.runtimes import cgroups, environment, network, nsenter, own_files, shim, warm_workers
from spawner.runtimes.commands import Address, Command, CommandResult, File
from spawner.runtimes.contract import (
    Capabilities,
    ObservedSandbox,
    RuntimeFailedError,
    RuntimeFault,
    SandboxPlan,
    WarmPlan,
)  # fmt: skip
from spawner.runtimes.fork_server import ForkServer
from spawner.runtimes.freezer import Freezer
from spawner.runtimes.isolation import IsolationLaunch
from spawner.runtimes.layout import Layout, SandboxDirectory
from spawner.runtimes.run_files import RunFiles
from spawner.runtimes.runtime_logs import LogQuery, file_log
from spawner.runtimes.termination import Termination
from spawner.runtimes.worker_start import WorkerStart, WorkerStarter, refuse_image

_log: Final = logs.get("runtime.process")


@dataclass
class ProcessRuntime:
    """The runtime of sandboxes on this host, which `factory.open_runtime` creates. See `contract.Runtime`."""

    layout: Layout
    worker: tuple[str, ...]
    launch: IsolationLaunch | None
    """The isolation of the sandboxes; None: they are not isolated."""
    groups: cgroups.ControlGroups
    capabilities: Capabilities
    toolchains: Path | None = None
    """The folder of the SDKs of agents."""
    refusal: str | None = None
    """Why no sandbox may be started, with the remedy; None: sandboxes may be started."""
    networks: network.Networks = field(default_factory=network.Networks)
    search_path: str = ""
    """The workers' PYTHONPATH: those entries of the spawner's PYTHONPATH that contain harness plugins."""
    name: str = "process"
    _notify: Callable[[str], None] = field(default=lambda _sandbox: None)
    _watches: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    forks: ForkServer | None = field(init=False, default=None)
    """The server that forks workers, if they are isolated; None: workers are started by exec."""
    forwarders: ForkServer | None = field(init=False, default=None)
    """The server that forks network forwarders. It is not the server of workers, because all processes of one server
    have the same memory addresses, and an agent may know those of its worker."""

    def __post_init__(self) -> None:
        if self.launch:
            self.forks = ForkServer(self.worker, self.search_path)
            self.forwarders = ForkServer(network.FORWARDER_COMMAND, "")
        self._update_worker_start()

    @property
    def termination(self) -> Termination:
        """Finds and ends the processes of this runtime."""
        return Termination(self.groups, namespaced=self.launch is not None)

    @property
    def freezer(self) -> Freezer:
        """Freezes and thaws the processes of this runtime."""
        return Freezer(self.groups, self.termination)

    @property
    def worker_starter(self) -> WorkerStarter:
        """Starts workers."""
        return WorkerStarter(
            self.worker,
            self.launch,
            self.groups,
            self.capabilities.processes == "rlimit",
            self.layout.disks,
            self.toolchains,
            self.networks,
            self.search_path,
            self.forks,
            self.forwarders,
        )

    def on_exit(self, notify: Callable[[str], None]) -> None:
        """Call `notify(unit)` from now on when a worker has ended, also for workers that run already."""
        self._notify = notify
        for directory in self.layout.directories():
            self._watch(directory)

    async def prepare(self, plan: WarmPlan) -> str | None:
        """Start a worker that waits for its identity, and return its public key, if it has stored one."""
        self._refuse_weak()
        directory = self.layout.directory(plan.unit)
        if not directory.was_claimed():
            await asyncio.to_thread(self.worker_starter.set_up_warm, directory, plan)
            await self._start(
                directory, directory.first_run(), self.worker_starter.warm_start_parameters(directory, plan)
            )
        await warm_workers.until_waiting(directory, lambda: self._shim(directory) is not None)
        return warm_workers.public_key(directory)

    async def create(self, plan: SandboxPlan) -> None:
        """Create the sandbox and start its worker, or give a warm worker its identity, unless that was done before."""
        self._refuse_weak()
        refuse_image(plan)
        directory = self.layout.directory(plan.unit)
        await asyncio.to_thread(self.worker_starter.set_up, directory, plan)
        # It is not `new_run`, because another request for the same sandbox may claim this run at any time.
        run = directory.first_run()
        if directory.warm.exists():
            variables = self.worker_starter.variables(directory, plan) | environment.grant_variable(plan)
            if await warm_workers.send_identity(directory, variables, lambda: self._shim(directory) is not None):
                return
            run = directory.new_run()
        elif directory.was_claimed():
            self._watch(directory)
            return
        await self._start(directory, run, self.worker_starter.cold_start_parameters(directory, plan))

    async def recover(self, plan: SandboxPlan) -> None:
        """Start a worker again, after ending all processes that the lost worker left."""
        directory = self._existing(plan.unit)
        if self._shim(directory):
            return
        await self.freezer.thaw(directory)
        await self.termination.end_all(directory)
        await self.worker_starter.set_up_recovery(directory, plan)
        await self._start(directory, directory.new_run(), self.worker_starter.recovery_parameters(directory, plan))

    async def pause(self, unit: str) -> None:
        """Freeze every process of the sandbox."""
        await self.freezer.freeze(self._existing(unit))

    async def resume(self, unit: str) -> None:
        """Thaw every process of the sandbox."""
        await self.freezer.thaw(self._existing(unit))

    async def stop(self, unit: str, grace: float) -> None:
        """Request the worker to end, wait up to `grace` seconds, then end every process of the sandbox."""
        directory = self.layout.directory(unit)
        await self.freezer.thaw(directory)
        shim_process = self._shim(directory)
        if shim_process:
            await self.termination.terminate_worker(shim_process, grace)
        await self.termination.end_all(directory)

    async def observe(self, unit: str) -> ObservedSandbox | None:
        """The state of the sandbox, or None if it has neither a directory nor a process."""
        directory = self.layout.directory(unit)
        if not directory.exists():
            return ObservedSandbox(unit, alive=True) if self.groups.members(unit) else None
        runs = [run for run in directory.runs() if run.claim.exists()]
        alive = self._shim(directory) is not None
        # If its file system is not mounted, its runs are not visible. Such a sandbox counts as started.
        run_count = len(runs) or int(self.layout.disks.is_missing(directory.folder))
        observed = ObservedSandbox(
            unit, alive, runs=run_count, project=directory.read_label(), since=int(directory.folder.stat().st_ctime)
        )
        if alive:
            return replace(observed, frozen=self.freezer.is_freeze_requested(directory))
        if not runs:
            return observed
        return replace(observed, end=shim.read_end(runs, oom_kills=self.groups.oom_kills(unit)))

    async def find_all(self) -> list[ObservedSandbox]:
        """All sandboxes with a directory or a control group on this host."""
        names = {directory.name for directory in self.layout.directories()} | self.groups.sandboxes()
        observed = [await self.observe(name) for name in sorted(names)]
        return [sandbox for sandbox in observed if sandbox]

    async def remove(self, unit: str) -> None:
        """End all processes, and remove the directory and the control groups."""
        directory = self.layout.directory(unit)
        await self.freezer.thaw(directory)
        await self.termination.clear(directory)
        if self.launch:
            await asyncio.to_thread(self.launch.release_uid, directory)
        await asyncio.to_thread(self.layout.remove, unit)

    async def run(self, unit: str, command: Command) -> CommandResult:
        """Run a command in the sandbox's namespaces, control groups and limits, beside its worker."""
        directory = self._existing(unit)
        if self.freezer.is_freeze_requested(directory):
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"{unit} is paused")
        worker = await self.termination.wait_for_worker(directory)
        return await nsenter.run(self.worker_starter.nsenter_context(directory, worker), command)

    async def write_files(self, unit: str, files: Collection[File]) -> None:
        """Write files into the sandbox's own folders."""
        await asyncio.to_thread(own_files.write_files, self._existing(unit), files)

    async def read(self, unit: str, path: str, limit: int) -> bytes | None:
        """The content of a file in the sandbox's own folders; None if the file does not exist."""
        return await asyncio.to_thread(own_files.read, self._existing(unit), path, limit)

    async def address(self, unit: str, port: int) -> Address:
        """The address of a port of the sandbox, for this host only."""
        return Address(f"http://127.0.0.1:{await network.host_port(self._existing(unit), port)}")

    def port_refusal(self, unit: str, port: int) -> str:
        """Why connections to this port of the sandbox's loopback leave the sandbox; empty if they stay in it."""
        return network.port_refusal(self._existing(unit), port)

    def logs(self, unit: str, query: LogQuery) -> AsyncIterator[bytes]:
        """The output of the worker of the last run."""
        directory = self._existing(unit)
        log = runs[-1].log if (runs := directory.runs()) else directory.folder / "no-run"
        return file_log(log, query, lambda: self._shim(directory) is not None)

    async def quarantine(self, unit: str) -> None:
        """End all processes, and move the directory to quarantine."""
        directory = self.layout.directory(unit)
        await self.termination.clear(directory)
        await self.layout.disks.repair(directory.folder)  # mounted and writable, so that its secrets can be deleted
        folder = await asyncio.to_thread(self.layout.quarantine, unit)
        _log.warning("sandbox with undelivered events quarantined", sandbox=unit, folder=str(folder))

    async def list_quarantined(self) -> list[str]:
        """The sandboxes whose directories are in quarantine."""
        return self.layout.list_quarantined()

    async def unquarantine(self, unit: str) -> None:
        """Move the directory out of quarantine."""
        await asyncio.to_thread(self.layout.unquarantine, unit)

    async def release(self, unit: str) -> None:
        """Delete the sandbox's secrets, give its files to the spawner's user, and unmount its file system.

        Its control groups are removed, unless the kernel has killed a process of the sandbox for lack of memory, which
        only the groups show.
        """
        if not self.groups.oom_kills(unit):
            await self.termination.remove_groups(self.layout.directory(unit))
        await asyncio.to_thread(
            self.worker_starter.release,
            self.layout.directory(unit),
            SandboxDirectory(self.layout.quarantine_root / unit),
        )

    async def close(self) -> None:
        """Stop watching the sandboxes, which continue, and end the fork servers."""
        await cancel_and_wait(list(self._watches.values()))
        self._watches.clear()
        for server in (self.forks, self.forwarders):
            if server:
                await asyncio.to_thread(server.close)
        self.groups.close()

    async def _start(self, directory: SandboxDirectory, run: RunFiles, start: WorkerStart) -> None:
        self._refuse_weak()
        for gap in self.capabilities.gaps:
            _log.warning("sandbox starts with weaker isolation", sandbox=directory.name, reason=gap)
        await self.worker_starter.spawn_and_claim(directory, run, start)
        self._update_worker_start()
        # The shim is watched even if it has already ended, because nothing else would report its end.
        self._watch(directory, shim.read_claim(run))

    def _update_worker_start(self) -> None:
        """Set in the capabilities how the next worker will be started, because the fork server may have failed."""
        worker_start = "fork" if self.forks and self.forks.usable else "exec"
        if worker_start != self.capabilities.worker_start:
            self.capabilities = replace(self.capabilities, worker_start=worker_start)

    def _refuse_weak(self) -> None:
        """Raise `RuntimeFailedError` if this host can't isolate sandboxes and the settings require isolation."""
        if self.refusal:
            raise RuntimeFailedError(RuntimeFault.REFUSED, self.refusal)

    def _existing(self, unit: str) -> SandboxDirectory:
        directory = self.layout.directory(unit)
        if not directory.exists():
            raise RuntimeFailedError(RuntimeFault.LOST, f"sandbox {unit} does not exist on this host")
        return directory

    def _shim(self, directory: SandboxDirectory) -> ProcessId | None:
        """The shim of the last run, if it is running."""
        process = shim.read_claim(runs[-1]) if (runs := directory.runs()) else None
        return process if process and process.alive() else None

    def _watch(self, directory: SandboxDirectory, process: ProcessId | None = None) -> None:
        process = process or self._shim(directory)
        watch = self._watches.get(directory.name)
        if process and (watch is None or watch.done()):
            self._watches[directory.name] = asyncio.create_task(self._report_end(directory.name, process))

    async def _report_end(self, unit: str, process: ProcessId) -> None:
        await process_signals.wait_ended(process)
        process_signals.reap(process.pid)
        self._watches.pop(unit, None)
        self._notify(unit)
