"""Starts a worker in its sandbox: writes its files, sets its limits, and starts its shim."""

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

_CLAIM_TIMEOUT_SECONDS: Final = 5.0
"""The timeout for a new shim to claim its run."""
_POLL_SECONDS: Final = 0.005
_log: Final = logs.get("runtime.process")


def refuse_image(plan: SandboxPlan) -> None:
    """Raise `RuntimeFailedError` if the spec names an image, because sandboxes of this runtime see the host's files."""
    if plan.spec.image:
        raise RuntimeFailedError(
            RuntimeFault.REFUSED,
            f"runtime process can't create a sandbox from the image {plan.spec.image}: name no image, "
            "or name a runtime that supports images, such as docker",
        )


@dataclass(frozen=True)
class WorkerStart:
    """The parameters of one run of a worker: its limits, environment variables, network policy and arguments."""

    limits: SandboxLimits
    variables: dict[str, str]
    network: NetworkPolicy
    arguments: tuple[str, ...] = ()
    nested: bool = False
    """Whether processes in the sandbox may create user namespaces."""
    repository: Path | None = None
    """The mirror to mount in the sandbox; None: no mirror."""


@dataclass(frozen=True)
class WorkerStarter:
    """Starts the workers of one runtime. `count_processes`: whether `setrlimit` limits the number of processes."""

    worker: tuple[str, ...]
    """The command line of a worker, without the arguments of a run."""
    launch: IsolationLaunch | None
    groups: cgroups.ControlGroups
    count_processes: bool
    disks: SizedDisks
    toolchains: Path | None = None
    """The folder of the SDKs of agents on the host."""
    networks: network.Networks = field(default_factory=network.Networks)
    search_path: str = ""
    """The worker's PYTHONPATH; empty: the variable is not set."""
    forks: ForkServer | None = None
    """The server that forks the workers of isolated sandboxes; None: workers are started by exec."""
    forwarders: ForkServer | None = None
    """The server that forks the network forwarders of isolated sandboxes; None: the shims start the forwarders."""

    def set_up(self, directory: SandboxDirectory, plan: SandboxPlan) -> None:
        """Create the directories and the files that the worker reads. Raises `RuntimeFailedError`."""
        try:
            self._make_directories(directory, plan.limits)
            directory.write_secret(directory.label, plan.project)
            directory.write_secret(directory.task, plan.spec.to_json())
            directory.write_secret(directory.joiner, plan.joiner)
            for name, text in plan.tls.items():
                directory.write_secret(directory.state / environment.TLS_FILES[name], text)
            if plan.previous:
                directory.write_secret(directory.previous_file, plan.previous.model_dump_json())
        except (OSError, NoUserError) as error:
            raise _directory_error(plan.unit, error) from error

    async def set_up_recovery(self, directory: SandboxDirectory, plan: SandboxPlan) -> None:
        """Prepare the file system of a sandbox for its recovery, and write the files. Raises `RuntimeFailedError`."""
        try:
            await self.disks.repair(directory.folder)
        except OSError as error:
            message = f"can't prepare the file system of {plan.unit}: {error}"
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, message) from error
        await asyncio.to_thread(self.set_up, directory, plan)

    def set_up_warm(self, directory: SandboxDirectory, plan: WarmPlan) -> None:
        """Create the directories of a worker that waits for its identity. Raises `RuntimeFailedError`."""
        try:
            self._make_directories(directory, plan.limits)
            warm_workers.make(directory)
        except (OSError, NoUserError) as error:
            raise _directory_error(plan.unit, error) from error

    def cold_start_parameters(self, directory: SandboxDirectory, plan: SandboxPlan) -> WorkerStart:
        """The parameters of a worker that begins its task immediately."""
        variables, nested = self.variables(directory, plan), plan.user_namespaces
        return WorkerStart(plan.limits, variables, self._network(plan), nested=nested, repository=plan.repository)

    def warm_start_parameters(self, directory: SandboxDirectory, plan: WarmPlan) -> WorkerStart:
        """The parameters of a worker that waits for its identity."""
        policy = self.networks.policy(plan.profile)
        variables = self.common_variables(directory) | self._python_path_variable()
        return WorkerStart(plan.limits, variables, policy, ("--warm",), nested=plan.user_namespaces)

    def recovery_parameters(self, directory: SandboxDirectory, plan: SandboxPlan) -> WorkerStart:
        """The parameters of a worker that publishes the events of a lost worker."""
        claimed = [run for run in directory.runs() if run.claim.exists()]
        oom_kills = self.groups.oom_kills(directory.name)
        lost_for_memory = bool(claimed) and shim.read_end(claimed, oom_kills=oom_kills).out_of_memory
        variables = self.variables(directory, plan, lost=_last_status(directory)) | environment.memory_loss_variable(
            lost_for_memory
        )
        return WorkerStart(plan.limits, variables, self._network(plan), ("--recover",), nested=plan.user_namespaces)

    def common_variables(self, directory: SandboxDirectory) -> dict[str, str]:
        """The environment variables of every process in the sandbox. The worker has more variables."""
        basic = environment.common_variables(self._paths(directory), self._memory_group(directory))
        return basic | self._toolchains_variable()

    def nsenter_context(self, directory: SandboxDirectory, worker: ProcessId) -> NsenterContext:
        """The context for starting commands in the sandbox, beside this worker."""
        paths = self._paths(directory)
        return NsenterContext(
            worker=worker,
            namespaced=self.launch is not None,
            groups=self.groups.directories(directory.name),
            root=paths.root,
            variables=self.common_variables(directory),
            user=directory.user if self.launch else None,
            filter=self.launch.filter(nested=False).hex() if self.launch else "",
            forks=self.forks,
        )

    def variables(self, directory: SandboxDirectory, plan: SandboxPlan, lost: int | None = None) -> dict[str, str]:
        """The worker's environment."""
        basic = environment.variables(plan, self._paths(directory), group=self._memory_group(directory), lost=lost)
        return basic | self._toolchains_variable() | self._python_path_variable() | self._repository_variable(plan)

    def shim_command_line(
        self, directory: SandboxDirectory, run: RunFiles, start: WorkerStart, *, forked: bool, forwarder_forked: bool
    ) -> list[str]:
        """The shim's command line.

        `forked`: the worker is forked, so the command line has a stub in its place. `forwarder_forked`: the network
        forwarder is forked, so the shim does not start it.
        """
        limits = self._process_limits(start)
        worker = [*self.worker, *start.arguments]
        command = shim.with_process_limit(limits, shim.stub(worker) if forked else worker)
        gate = network.GATE if self.needs_forwarder(start.network) else None
        if self.launch:
            shim.make_pipe(run)
            paths = {"cgroup": self._memory_group(directory), bubblewrap.REPOSITORY.name: start.repository}
            mounts = {name: path for name, path in paths.items() if path}
            command = self.launch.command(
                directory, run, mounts=mounts, info=shim.INFO, gate=gate, command=command, nested=start.nested
            )
        forwarder = None if gate is None else network.FORWARDER
        return shim.argv(
            run, directory.work, limits, self.groups.directories(directory.name), command,
            log_to_pipe=self.launch is not None, forwarder=forwarder, forwarder_forked=forwarder_forked,
        )  # fmt: skip

    def _process_limits(self, start: WorkerStart) -> kernel_limits.ProcessLimits:
        return kernel_limits.for_processes(
            start.limits,
            hard_files=kernel_limits.hard_open_files(),
            memory_group=self.groups.memory is not None,
            count_processes=self.count_processes,
        )

    async def spawn_and_claim(self, directory: SandboxDirectory, run: RunFiles, start: WorkerStart) -> None:
        """Start the shim of one run, and return when a shim has claimed the run. Raises `RuntimeFailedError`."""
        handover = Handover()
        try:
            pid, forked = await asyncio.to_thread(self._spawn_forked, directory, run, start, handover)
        except asyncio.CancelledError:
            handover.abandon()
            raise
        with ExitStack() as stack:
            for _, connection in forked:
                stack.enter_context(connection)
            # Concurrently, so that no connection stays open after a cancellation, or if one server does not reply.
            await asyncio.gather(*(server.wait_forked(connection) for server, connection in forked))
        deadline = asyncio.get_running_loop().time() + _CLAIM_TIMEOUT_SECONDS
        while shim.read_claim(run) is None:
            # A shim that has ended will not claim the run. If another shim has claimed it, that is found below.
            if process_signals.reap(pid) or asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(_POLL_SECONDS)
        if not run.claim.exists():
            message = f"the shim of {directory.name} did not start; see {run.log}"
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, message)

    def release(self, *directories: SandboxDirectory) -> None:
        """Release the files of a sandbox that has ended, in each of these directories. Raises `OSError`.

        Its secrets are deleted now, because it may take long until a spawner runs and removes the directory. A recovery
        writes the secrets again.
        """
        for directory in directories:
            directory.delete_secrets()
            if self.launch and self.launch.subordinate:
                self.launch.reclaim_files(directory)
        image_mounts.detach(*(directory.folder for directory in directories))

    def spawn(self, directory: SandboxDirectory, run: RunFiles, start: WorkerStart) -> int:
        """Start the shim of one run, and return its process id. Raises `RuntimeFailedError`."""
        return self._spawn(directory, run, start, None)

    def _spawn_forked(
        self, directory: SandboxDirectory, run: RunFiles, start: WorkerStart, handover: Handover
    ) -> tuple[int, list[tuple[ForkServer, socket.socket]]]:
        """Start the shim of one run. The worker and the forwarder are forked if possible, else started by exec.

        Returns the shim's process id, and for each forked process its fork server and the connection to the process.
        Raises `RuntimeFailedError`.
        """
        with ExitStack() as stack:
            worker_ends, forwarder_ends = ([stack.enter_context(end) for end in socket.socketpair()] for _ in range(2))
            channels: list[socket.socket | None] = [None, None]
            forked: list[tuple[ForkServer, socket.socket]] = []
            if self.forks and (connection := self._request_fork(directory, run, start, worker_ends[0])):
                channels[0] = worker_ends[1]
                forked.append((self.forks, connection))
            if self.forwarders and (connection := self._request_forwarder(directory, run, start, forwarder_ends[0])):
                channels[1] = forwarder_ends[1]
                forked.append((self.forwarders, connection))
            for _, connection in forked:
                handover.add(connection)
            try:
                return self._spawn(directory, run, start, *channels), forked
            except RuntimeFailedError:
                for _, connection in forked:
                    connection.close()
                raise

    def _spawn(
        self,
        directory: SandboxDirectory,
        run: RunFiles,
        start: WorkerStart,
        channel: socket.socket | None,
        forwarder_channel: socket.socket | None = None,
    ) -> int:
        """Start the shim. Raises `RuntimeFailedError`.

        `channel`: the stub's socket to the forked worker; None: the shim starts the worker. `forwarder_channel`: the
        shim's socket to the forked forwarder; None: the shim starts the forwarder.
        """
        try:
            if self.needs_forwarder(start.network):
                network.prepare(directory, run, start.network)
            else:
                _log.warning("sandbox shares this host's network", sandbox=directory.name)
            argv = self.shim_command_line(
                directory, run, start, forked=channel is not None, forwarder_forked=forwarder_channel is not None
            )
            channels = {shim.CHANNEL: channel, shim.FORWARDER_CHANNEL: forwarder_channel}
            with _as_descriptors(channels) as actions:
                return os.posix_spawn(
                    argv[0], argv, start.variables, setsid=True, setsigmask=[], file_actions=actions,
                    setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
                )  # fmt: skip
        except OSError as error:
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"{directory.name} did not start: {error}") from error

    def _request_fork(
        self, directory: SandboxDirectory, run: RunFiles, start: WorkerStart, channel: socket.socket
    ) -> socket.socket | None:
        """Request a forked worker, which waits for the stub at the other end of `channel`.

        Returns the connection to the worker; None if the worker can't be forked.
        """
        if self.forks is None or self.launch is None or not self.forks.usable:
            return None
        try:
            work_stat = directory.work.stat()
        except OSError:  # without the directory, the exec of the worker will fail with the reason
            return None
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        isolation = {
            "user": directory.user if self.launch.users else None,
            "inode": [work_stat.st_dev, work_stat.st_ino],  # shows whether the fork entered the right sandbox
            "filter": self.launch.filter(nested=start.nested).hex(),
            "groups": [str(group) for group in self.groups.directories(directory.name)],
            "limits": kernel_limits.as_resources(self._process_limits(start)),
        }
        folder = str(self._paths(directory).work)
        process = {"folder": folder, "variables": {**start.variables, "PWD": folder}, "arguments": start.arguments}
        request = {"role": "worker", "log": str(run.pipe), **isolation, **process}
        return self.forks.request(json.dumps(request).encode(), [channel.fileno()])

    def _request_forwarder(
        self, directory: SandboxDirectory, run: RunFiles, start: WorkerStart, channel: socket.socket
    ) -> socket.socket | None:
        """Request a forked forwarder, which waits for the shim at the other end of `channel`.

        Returns the connection to the forwarder; None if the shim must start the forwarder. Without control groups it
        must, because a forked forwarder is no child of the shim, and would not be found when the sandbox is ended.
        """
        groups = [str(group) for group in self.groups.directories(directory.name)]
        if not groups or not self.needs_forwarder(start.network):
            return None
        if self.forwarders is None or not self.forwarders.usable:
            return None
        request = {"role": "forwarder", "groups": groups, "folder": str(run.folder), "log": str(run.network_log)}
        return self.forwarders.request(json.dumps(request).encode(), [channel.fileno()])

    def needs_forwarder(self, policy: NetworkPolicy) -> bool:
        """Whether a sandbox with this policy has its own network namespace, and so a forwarder."""
        return self.launch is not None and policy.mode != "host"

    def _network(self, plan: SandboxPlan) -> NetworkPolicy:
        git_proxies = [plan.git_proxy] if plan.git_proxy else []
        return self.networks.policy(plan.spec.profile, plan.nats_url, *git_proxies)

    def _paths(self, directory: SandboxDirectory) -> environment.Paths:
        return environment.paths(directory, inside=self.launch is not None)

    def _make_directories(self, directory: SandboxDirectory, limits: SandboxLimits) -> None:
        """Create the directories and control groups, and assign a uid to them. Raises `OSError`, `NoUserError`."""
        self.disks.attach(directory.folder)  # first: the directories are created in the mounted file system
        directory.make()
        bubblewrap.write_accounts(directory)
        # A warm worker of an older version runs without an own uid, and would lose access to its files.
        is_older_version = directory.warm.exists() and directory.user is None
        if self.launch and (self.launch.subordinate or not is_older_version):
            self.launch.assign_owner(directory)
        self.groups.make(directory.name, kernel_limits.for_group(limits))

    def _repository_variable(self, plan: SandboxPlan) -> dict[str, str]:
        """The variable with the mirror's path as the worker sees it. A worker in a recovery does not use the mirror."""
        path = bubblewrap.REPOSITORY if self.launch else plan.repository
        return {"SANDHERD_REPOSITORY": str(path)} if plan.repository else {}

    def _toolchains_variable(self) -> dict[str, str]:
        """The variable with the SDKs' folder as the worker sees it."""
        path = bubblewrap.TOOLCHAINS if self.launch else self.toolchains
        return {"SANDHERD_TOOLCHAINS": str(path)} if self.toolchains and path else {}

    def _python_path_variable(self) -> dict[str, str]:
        return {"PYTHONPATH": self.search_path} if self.search_path else {}

    def _memory_group(self, directory: SandboxDirectory) -> Path | None:
        return self.groups.memory / directory.name if self.groups.memory else None


def _directory_error(unit: str, error: Exception) -> RuntimeFailedError:
    return RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"can't create the directories of {unit}: {error}")


@contextmanager
def _as_descriptors(channels: Mapping[int, socket.socket | None]) -> Iterator[list[tuple[int, int, int]]]:
    """The actions for `posix_spawn` that give the program these sockets as the descriptors with these numbers.

    The actions refer to copies with higher numbers, because a socket may have the number that another one must get.
    """
    with ExitStack() as stack:
        actions = []
        for number, channel in channels.items():
            if channel is not None:
                copy = fcntl.fcntl(channel, fcntl.F_DUPFD_CLOEXEC, max(channels) + 1)
                stack.callback(os.close, copy)
                actions.append((os.POSIX_SPAWN_DUP2, copy, number))
        yield actions


def _last_status(directory: SandboxDirectory) -> int | None:
    """The exit status of the last run that has ended; None if none has, or if the status is unknown."""
    ended = [run for run in directory.runs() if run.exit.exists()]
    return shim.read_exit(ended[-1]) if ended else None
