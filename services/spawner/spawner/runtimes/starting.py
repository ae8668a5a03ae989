"""Starting a worker in its place: the files it finds, its limits, and the command line of the shim that holds it."""

import asyncio
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sandherd_network.policy import NetworkPolicy

from sandherd.contracts.specs import Limits
from sandherd.telemetry import logs
from spawner.runtimes import bubblewrap, cgroups, environment, image_mounts, limits, network, processes, shim, warming
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault, SandboxPlan, WarmPlan
from spawner.runtimes.entering import Entry
from spawner.runtimes.isolation import Walls
from spawner.runtimes.layout import Place
from spawner.runtimes.processes import ProcessId
from spawner.runtimes.run_files import Run
from spawner.runtimes.sandbox_users import NoUserError
from spawner.runtimes.sized_disks import SizedDisks

_CLAIM_SECONDS: Final = 5.0
_LOOK_AGAIN: Final = 0.005
_log: Final = logs.get("runtime.process")


def refuse_image(plan: SandboxPlan) -> None:
    """Raise `RuntimeFailedError` for a sandbox that is to be made of an image: here it would see this host's files."""
    if plan.spec.image:
        raise RuntimeFailedError(
            RuntimeFault.REFUSED,
            f"runtime process makes no sandboxes of images, and {plan.spec.image} is one: leave it out, "
            "or name a runtime that does, as docker",
        )


@dataclass(frozen=True)
class Start:
    """What is the run's own: the limits, the variables, and the words behind the worker's command."""

    limits: Limits
    variables: dict[str, str]
    network: NetworkPolicy
    words: tuple[str, ...] = ()
    nested: bool = False
    """Whether what runs inside may make user namespaces."""


@dataclass(frozen=True)
class Starting:
    """What every start of this runtime has in common. `count_processes`: their number is limited by `setrlimit`."""

    worker: tuple[str, ...]
    walls: Walls | None
    groups: cgroups.Groups
    count_processes: bool
    disks: SizedDisks
    toolchains: Path | None = None
    """Where the SDKs of agents are on the host."""
    networks: network.Networks = field(default_factory=network.Networks)

    def furnish(self, place: Place, plan: SandboxPlan) -> None:
        """Make the place and put there what its worker is to know. Raises `RuntimeFailedError`."""
        try:
            self._make(place, plan.limits)
            place.write_secret(place.label, plan.project)
            place.write_secret(place.task, plan.spec.to_json())
            place.write_secret(place.joiner, plan.joiner)
            if plan.previous:
                place.write_secret(place.offer, plan.previous.model_dump_json())
        except (OSError, NoUserError) as error:
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"no place for {plan.unit}: {error}") from error

    async def refurnish(self, place: Place, plan: SandboxPlan) -> None:
        """Prepare the file system of a sandbox for its recovery, and furnish it. Raises `RuntimeFailedError`."""
        try:
            await self.disks.mend(place.folder)
        except OSError as error:
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"no disk for {plan.unit}: {error}") from error
        await asyncio.to_thread(self.furnish, place, plan)

    def furnish_warm(self, place: Place, plan: WarmPlan) -> None:
        """Make the place of a worker that is to wait. Raises `RuntimeFailedError`."""
        try:
            self._make(place, plan.limits)
            warming.make(place)
        except (OSError, NoUserError) as error:
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"no place for {plan.unit}: {error}") from error

    def cold_start(self, place: Place, plan: SandboxPlan) -> Start:
        """Of a worker that begins at once."""
        return Start(plan.limits, self.variables(place, plan), self._network(plan), nested=plan.user_namespaces)

    def warm_start(self, place: Place, plan: WarmPlan) -> Start:
        """Of a worker that waits to be told what it is."""
        policy = self.networks.policy(plan.profile)
        return Start(plan.limits, self.common(place), policy, ("--warm",), nested=plan.user_namespaces)

    def recovery(self, place: Place, plan: SandboxPlan) -> Start:
        """Of a worker that says what the last one could not."""
        variables = self.variables(place, plan, lost=_last_status(place))
        return Start(plan.limits, variables, self._network(plan), ("--recover",), nested=plan.user_namespaces)

    def common(self, place: Place) -> dict[str, str]:
        """The environment of whatever runs there; the worker's own is more."""
        return environment.common(self._seen(place), self._memory_group(place)) | self._toolchains()

    def entry(self, place: Place, worker: ProcessId) -> Entry:
        """Where a command runs that is started beside this worker."""
        seen = self._seen(place)
        return Entry(
            worker=worker,
            namespaced=self.walls is not None,
            groups=self.groups.of(place.name),
            root=seen.place,
            variables=self.common(place),
            user=place.user if self.walls else None,
            filter=self.walls.filter(nested=False).hex() if self.walls else "",
        )

    def variables(self, place: Place, plan: SandboxPlan, lost: int | None = None) -> dict[str, str]:
        """The worker's environment."""
        found = environment.variables(plan, self._seen(place), group=self._memory_group(place), lost=lost)
        return found | self._toolchains()

    def line(self, place: Place, run: Run, start: Start) -> list[str]:
        """The shim's command line."""
        own = limits.for_processes(
            start.limits,
            hard_files=limits.hard_open_files(),
            memory_group=self.groups.memory is not None,
            count_processes=self.count_processes,
        )
        command = shim.limiting_processes(own, [*self.worker, *start.words])
        gate = network.GATE if self.forwards(start.network) else None
        if self.walls:
            shim.make_pipe(run)
            memory = self._memory_group(place)
            command = self.walls.command(
                place, run, groups=memory, info=3, gate=gate, command=command, nested=start.nested
            )
        forwarder = None if gate is None else network.FORWARDER
        groups, piped = self.groups.of(place.name), self.walls is not None
        return shim.argv(run, place.work, own, groups, command, piped=piped, forwarder=forwarder)

    async def spawn_and_claim(self, place: Place, run: Run, start: Start) -> None:
        """Start the shim of one run, and return when one has claimed the run. Raises `RuntimeFailedError`."""
        pid = await asyncio.to_thread(self.spawn, place, run, start)
        deadline = asyncio.get_running_loop().time() + _CLAIM_SECONDS
        while shim.read_claim(run) is None:
            # A child that has ended without a claim, or that lost the claim to another, is not waited for.
            if processes.reap(pid) or asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(_LOOK_AGAIN)
        if not run.claim.exists():
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"the shim of {place.name} did not start; see {run.log}")

    def leave(self, *places: Place) -> None:
        """Let go of the files of a sandbox that has ended, wherever its directory is. Raises `OSError`."""
        for place in places:
            if self.walls and self.walls.subordinate:
                self.walls.give_back(place)
        image_mounts.detach(*(place.folder for place in places))

    def spawn(self, place: Place, run: Run, start: Start) -> int:
        """Start the shim of one run, and return its process id. Raises `RuntimeFailedError`."""
        try:
            if self.forwards(start.network):
                network.prepare(place, run, start.network)
            else:
                _log.warning("a sandbox shares this host's network", sandbox=place.name)
            line = self.line(place, run, start)
            return os.posix_spawn(
                line[0], line, start.variables, setsid=True, setsigmask=[], setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]
            )
        except OSError as error:
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"{place.name} did not start: {error}") from error

    def forwards(self, policy: NetworkPolicy) -> bool:
        """Whether a sandbox with this policy has a network namespace, with a forwarder."""
        return self.walls is not None and policy.mode != "host"

    def _network(self, plan: SandboxPlan) -> NetworkPolicy:
        return self.networks.policy(plan.spec.profile, plan.nats_url)

    def _seen(self, place: Place) -> environment.Paths:
        return environment.paths(place, inside=self.walls is not None)

    def _make(self, place: Place, allowed: Limits) -> None:
        self.disks.attach(place.folder)  # first: the directories are made in it, and belong to the sandbox's uid there
        place.make()
        bubblewrap.write_accounts(place)
        # A worker that an older version started beforehand would lose its files to the new uid.
        older = place.warm.exists() and place.user is None
        if self.walls and (self.walls.subordinate or not older):
            self.walls.own(place)
        self.groups.make(place.name, limits.for_group(allowed))

    def _toolchains(self) -> dict[str, str]:
        """Where the worker finds them."""
        seen = bubblewrap.TOOLCHAINS if self.walls else self.toolchains
        return {"SANDHERD_TOOLCHAINS": str(seen)} if self.toolchains and seen else {}

    def _memory_group(self, place: Place) -> Path | None:
        return self.groups.memory / place.name if self.groups.memory else None


def _last_status(place: Place) -> int | None:
    """How the last run before this one ended."""
    ended = [run for run in place.runs() if run.exit.exists()]
    return shim.read_exit(ended[-1]) if ended else None
