"""Starts a worker in its directory: its files, its limits, and the command line of its shim."""

import asyncio
import fcntl
import json
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sandherd_network.policy import NetworkPolicy

from sandherd import process_signals
from sandherd.contracts.specs import SandboxLimits
from sandherd.processes import ProcessId
from sandherd.telemetry import logs
from spawner.runtimes import (
    bubblewrap,
    cgroups,
    environment,
    image_mounts,
    kernel_limits,
    network,
    shim,
    warm_workers,
)
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault, SandboxPlan, WarmPlan
from spawner.runtimes.fork_server import ForkServer, Handover
from spawner.runtimes.isolation import IsolationLaunch
from spawner.runtimes.layout import SandboxDirectory
from spawner.runtimes.nsenter import NsenterContext
from spawner.runtimes.run_files import RunFiles
from spawner.runtimes.sandbox_users import NoUserError
from spawner.runtimes.sized_disks import SizedDisks

_CLAIM_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.005
_log: Final = logs.get("runtime.process")


def refuse_image(plan: SandboxPlan) -> None:
    """Raise `RuntimeFailedError` for a sandbox with an image: here it would have this host's files."""
    if plan.spec.image:
        raise RuntimeFailedError(
            RuntimeFault.REFUSED,
            f"runtime process makes no sandboxes of images, and {plan.spec.image} is one: leave it out, "
            "or name a runtime that does, as docker",
        )


@dataclass(frozen=True)
class WorkerStart:
    """What differs between runs: the limits, the variables, and further arguments of the worker."""

    limits: SandboxLimits
    variables: dict[str, str]
    network: NetworkPolicy
    arguments: tuple[str, ...] = ()
    nested: bool = False
    """Whether processes inside may create user namespaces."""
    repository: Path | None = None
    """The mirror that is mounted."""


@dataclass(frozen=True)
class WorkerStarter:
    """Starts the workers of one runtime. `count_processes`: the number of processes is limited by `setrlimit`."""

    worker: tuple[str, ...]
    launch: IsolationLaunch | None
    groups: cgroups.ControlGroups
    count_processes: bool
    disks: SizedDisks
    toolchains: Path | None = None
    """The folder of the SDKs of agents on the host."""
    networks: network.Networks = field(default_factory=network.Networks)
    search_path: str = ""
    """The worker's PYTHONPATH; empty: none."""
    forks: ForkServer | None = None
    """Forks the workers of isolated sandboxes; None: they are started by exec."""
    forwarders: ForkServer | None = None
    """Forks their network forwarders; None: the shims start them."""

    def set_up(self, place: SandboxDirectory, plan: SandboxPlan) -> None:
        """Create the directories and the files that the worker reads. Raises `RuntimeFailedError`."""
        try:
            self._make(place, plan.limits)
            place.write_secret(place.label, plan.project)
            place.write_secret(place.task, plan.spec.to_json())
            place.write_secret(place.joiner, plan.joiner)
            for name, text in plan.tls.items():
                place.write_secret(place.state / environment.TLS_FILES[name], text)
            if plan.previous:
                place.write_secret(place.offer, plan.previous.model_dump_json())
        except (OSError, NoUserError) as error:
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"no place for {plan.unit}: {error}") from error

    async def set_up_recovery(self, place: SandboxDirectory, plan: SandboxPlan) -> None:
        """Prepare the file system of a sandbox for its recovery, and write the files. Raises `RuntimeFailedError`."""
        try:
            await self.disks.repair(place.folder)
        except OSError as error:
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"no disk for {plan.unit}: {error}") from error
        await asyncio.to_thread(self.set_up, place, plan)

    def set_up_warm(self, place: SandboxDirectory, plan: WarmPlan) -> None:
        """Create the directories of a worker that waits for its identity. Raises `RuntimeFailedError`."""
        try:
            self._make(place, plan.limits)
            warm_workers.make(place)
        except (OSError, NoUserError) as error:
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"no place for {plan.unit}: {error}") from error

    def cold_start(self, place: SandboxDirectory, plan: SandboxPlan) -> WorkerStart:
        """The start of a worker that begins at once."""
        variables, nested = self.variables(place, plan), plan.user_namespaces
        return WorkerStart(plan.limits, variables, self._network(plan), nested=nested, repository=plan.repository)

    def warm_start(self, place: SandboxDirectory, plan: WarmPlan) -> WorkerStart:
        """The start of a worker that waits for its identity."""
        policy, variables = self.networks.policy(plan.profile), self.common(place) | self._search()
        return WorkerStart(plan.limits, variables, policy, ("--warm",), nested=plan.user_namespaces)

    def recovery(self, place: SandboxDirectory, plan: SandboxPlan) -> WorkerStart:
        """The start of a worker that publishes the events of a lost one."""
        claimed = [run for run in place.runs() if run.claim.exists()]
        kills = self.groups.kills(place.name)
        for_memory = bool(claimed) and shim.read_end(claimed, kills=kills).out_of_memory
        variables = self.variables(place, plan, lost=_last_status(place)) | environment.memory_loss(for_memory)
        return WorkerStart(plan.limits, variables, self._network(plan), ("--recover",), nested=plan.user_namespaces)

    def common(self, place: SandboxDirectory) -> dict[str, str]:
        """The environment of all processes in the sandbox; the worker's has more."""
        return environment.common(self._paths(place), self._memory_group(place)) | self._toolchains()

    def entry(self, place: SandboxDirectory, worker: ProcessId) -> NsenterContext:
        """How to start a command beside this worker."""
        seen = self._paths(place)
        return NsenterContext(
            worker=worker,
            namespaced=self.launch is not None,
            groups=self.groups.of(place.name),
            root=seen.place,
            variables=self.common(place),
            user=place.user if self.launch else None,
            filter=self.launch.filter(nested=False).hex() if self.launch else "",
            forks=self.forks,
        )

    def variables(self, place: SandboxDirectory, plan: SandboxPlan, lost: int | None = None) -> dict[str, str]:
        """The worker's environment."""
        found = environment.variables(plan, self._paths(place), group=self._memory_group(place), lost=lost)
        return found | self._toolchains() | self._search() | self._repository(plan)

    def line(
        self, place: SandboxDirectory, run: RunFiles, start: WorkerStart, *, forked: bool = False, lent: bool = False
    ) -> list[str]:
        """The shim's command line. `forked`: with a stub in place of the worker. `lent`: its forwarder is forked."""
        own = self._process_limits(start)
        worker = [*self.worker, *start.arguments]
        command = shim.limiting_processes(own, shim.stub(worker) if forked else worker)
        gate = network.GATE if self.forwards(start.network) else None
        if self.launch:
            shim.make_pipe(run)
            paths = {"cgroup": self._memory_group(place), bubblewrap.REPOSITORY.name: start.repository}
            shown = {name: path for name, path in paths.items() if path}
            command = self.launch.command(
                place, run, shown=shown, info=3, gate=gate, command=command, nested=start.nested
            )
        forwarder = None if gate is None else network.FORWARDER
        groups, piped = self.groups.of(place.name), self.launch is not None
        return shim.argv(run, place.work, own, groups, command, piped=piped, forwarder=forwarder, forked=lent)

    def _process_limits(self, start: WorkerStart) -> kernel_limits.ProcessLimits:
        return kernel_limits.for_processes(
            start.limits,
            hard_files=kernel_limits.hard_open_files(),
            memory_group=self.groups.memory is not None,
            count_processes=self.count_processes,
        )

    async def spawn_and_claim(self, place: SandboxDirectory, run: RunFiles, start: WorkerStart) -> None:
        """Start the shim of one run, and return when one has claimed the run. Raises `RuntimeFailedError`."""
        handover = Handover()
        try:
            pid, forked = await asyncio.to_thread(self._spawn_forked, place, run, start, handover)
        except asyncio.CancelledError:
            handover.abandon()
            raise
        with ExitStack() as stack:
            for _, connection in forked:
                stack.enter_context(connection)
            # Together: neither a server that does not reply nor a cancellation leaves the other's connection open.
            await asyncio.gather(*(server.wait_forked(connection) for server, connection in forked))
        deadline = asyncio.get_running_loop().time() + _CLAIM_SECONDS
        while shim.read_claim(run) is None:
            # A child that ended without claiming the run, or after another claimed it, is not waited for.
            if process_signals.reap(pid) or asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(_POLL_SECONDS)
        if not run.claim.exists():
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"the shim of {place.name} did not start; see {run.log}")

    def release(self, *places: SandboxDirectory) -> None:
        """Release the files of a sandbox that has ended, wherever its directory is. Raises `OSError`.

        Its secrets are deleted: no spawner may be started again for a long time. A recovery is given them again.
        """
        for place in places:
            place.delete_secrets()
            if self.launch and self.launch.subordinate:
                self.launch.reclaim_files(place)
        image_mounts.detach(*(place.folder for place in places))

    def spawn(self, place: SandboxDirectory, run: RunFiles, start: WorkerStart) -> int:
        """Start the shim of one run, and return its process id. Raises `RuntimeFailedError`."""
        return self._spawn(place, run, start, None)

    def _spawn_forked(
        self, place: SandboxDirectory, run: RunFiles, start: WorkerStart, handover: Handover
    ) -> tuple[int, list[tuple[ForkServer, socket.socket]]]:
        """As `spawn`, with the connections to the processes that were forked for it; the others are started by exec."""
        with ExitStack() as stack:
            stubs, forwarders = ([stack.enter_context(end) for end in socket.socketpair()] for _ in range(2))
            channels: list[socket.socket | None] = [None, None]
            forked: list[tuple[ForkServer, socket.socket]] = []
            if self.forks and (connection := self._request_fork(place, run, start, stubs[0])):
                channels[0] = stubs[1]
                forked.append((self.forks, connection))
            if self.forwarders and (connection := self._request_forwarder(place, run, start, forwarders[0])):
                channels[1] = forwarders[1]
                forked.append((self.forwarders, connection))
            for _, connection in forked:
                handover.put(connection)
            try:
                return self._spawn(place, run, start, *channels), forked
            except RuntimeFailedError:
                for _, connection in forked:
                    connection.close()
                raise

    def _spawn(
        self,
        place: SandboxDirectory,
        run: RunFiles,
        start: WorkerStart,
        channel: socket.socket | None,
        lent: socket.socket | None = None,
    ) -> int:
        """Start the shim, with a stub that has this channel, or with the worker itself. `lent`: to its forwarder."""
        try:
            if self.forwards(start.network):
                network.prepare(place, run, start.network)
            else:
                _log.warning("sandbox shares this host's network", sandbox=place.name)
            line = self.line(place, run, start, forked=channel is not None, lent=lent is not None)
            with _as_descriptors({shim.CHANNEL: channel, shim.FORWARDER_CHANNEL: lent}) as actions:
                return os.posix_spawn(
                    line[0], line, start.variables, setsid=True, setsigmask=[], file_actions=actions,
                    setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
                )  # fmt: skip
        except OSError as error:
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"{place.name} did not start: {error}") from error

    def _request_fork(
        self, place: SandboxDirectory, run: RunFiles, start: WorkerStart, channel: socket.socket
    ) -> socket.socket | None:
        """Request a worker that waits for the stub at the other end of `channel`. None: the worker can't be forked."""
        if self.forks is None or self.launch is None or not self.forks.usable:
            return None
        try:
            inside = place.work.stat()
        except OSError:  # then the worker does not start either
            return None
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        isolation = {
            "user": place.user if self.launch.users else None,
            "inode": [inside.st_dev, inside.st_ino],
            "filter": self.launch.filter(nested=start.nested).hex(),
            "groups": [str(group) for group in self.groups.of(place.name)],
            "limits": kernel_limits.as_resources(self._process_limits(start)),
        }
        folder = str(self._paths(place).work)
        process = {"folder": folder, "variables": {**start.variables, "PWD": folder}, "arguments": start.arguments}
        request = {"role": "worker", "log": str(run.pipe), **isolation, **process}
        return self.forks.request(json.dumps(request).encode(), [channel.fileno()])

    def _request_forwarder(
        self, place: SandboxDirectory, run: RunFiles, start: WorkerStart, channel: socket.socket
    ) -> socket.socket | None:
        """Request a forwarder that waits for the shim at the other end of `channel`. None: the shim starts it.

        Only control groups find one that is no child of the shim when the sandbox is ended.
        """
        groups = [str(group) for group in self.groups.of(place.name)]
        if not groups or self.forwarders is None or not self.forwarders.usable or not self.forwards(start.network):
            return None
        request = {"role": "forwarder", "groups": groups, "folder": str(run.folder), "log": str(run.network_log)}
        return self.forwarders.request(json.dumps(request).encode(), [channel.fileno()])

    def forwards(self, policy: NetworkPolicy) -> bool:
        """Whether a sandbox with this policy has a network namespace, with a forwarder."""
        return self.launch is not None and policy.mode != "host"

    def _network(self, plan: SandboxPlan) -> NetworkPolicy:
        more = [plan.git_proxy] if plan.git_proxy else []
        return self.networks.policy(plan.spec.profile, plan.nats_url, *more)

    def _paths(self, place: SandboxDirectory) -> environment.Paths:
        return environment.paths(place, inside=self.launch is not None)

    def _make(self, place: SandboxDirectory, allowed: SandboxLimits) -> None:
        self.disks.attach(place.folder)  # first: the directories are made in it, and belong to the sandbox's uid there
        place.make()
        bubblewrap.write_accounts(place)
        # A warm worker that an older version started would lose access to its files.
        older = place.warm.exists() and place.user is None
        if self.launch and (self.launch.subordinate or not older):
            self.launch.own(place)
        self.groups.make(place.name, kernel_limits.for_group(allowed))

    def _repository(self, plan: SandboxPlan) -> dict[str, str]:
        """The path of the mirror as the worker sees it. One that recovers events checks out nothing."""
        seen = bubblewrap.REPOSITORY if self.launch else plan.repository
        return {"SANDHERD_REPOSITORY": str(seen)} if plan.repository else {}

    def _toolchains(self) -> dict[str, str]:
        """The paths as the worker sees them."""
        seen = bubblewrap.TOOLCHAINS if self.launch else self.toolchains
        return {"SANDHERD_TOOLCHAINS": str(seen)} if self.toolchains and seen else {}

    def _search(self) -> dict[str, str]:
        return {"PYTHONPATH": self.search_path} if self.search_path else {}

    def _memory_group(self, place: SandboxDirectory) -> Path | None:
        return self.groups.memory / place.name if self.groups.memory else None


@contextmanager
def _as_descriptors(channels: Mapping[int, socket.socket | None]) -> Iterator[list[tuple[int, int, int]]]:
    """The actions that give a program these sockets as these descriptors; copies, as one may have another's number."""
    with ExitStack() as stack:
        actions = []
        for number, channel in channels.items():
            if channel is not None:
                copy = fcntl.fcntl(channel, fcntl.F_DUPFD_CLOEXEC, max(channels) + 1)
                stack.callback(os.close, copy)
                actions.append((os.POSIX_SPAWN_DUP2, copy, number))
        yield actions


def _last_status(place: SandboxDirectory) -> int | None:
    """The exit status of the previous run."""
    ended = [run for run in place.runs() if run.exit.exists()]
    return shim.read_exit(ended[-1]) if ended else None
