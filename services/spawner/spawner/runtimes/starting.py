"""Starting a worker in its place: the files it finds, its limits, and the command line of the shim that holds it."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from sandherd.contracts.specs import Limits
from spawner.runtimes import bubblewrap, cgroups, environment, limits, shim, warming
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault, SandboxPlan, WarmPlan
from spawner.runtimes.entering import Entry
from spawner.runtimes.layout import Place, Run
from spawner.runtimes.processes import ProcessId


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
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Starting:
    """What every start of this runtime has in common. `count_processes`: their number is limited by `setrlimit`."""

    worker: tuple[str, ...]
    host: bubblewrap.Host | None
    groups: cgroups.Groups
    count_processes: bool
    toolchains: Path | None = None
    """Where the SDKs of agents are on the host."""

    def furnish(self, place: Place, plan: SandboxPlan) -> None:
        """Make the place and put there what its worker is to know. Raises `RuntimeFailedError`."""
        try:
            self._make(place, plan.limits)
            place.label.write_text(plan.project)
            place.write_secret(place.task, plan.spec.to_json())
            place.write_secret(place.joiner, plan.joiner)
            if plan.previous:
                place.write_secret(place.offer, plan.previous.model_dump_json())
        except OSError as error:
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"no place for {plan.unit}: {error}") from error

    def furnish_warm(self, place: Place, plan: WarmPlan) -> None:
        """Make the place of a worker that is to wait. Raises `RuntimeFailedError`."""
        try:
            self._make(place, plan.limits)
            warming.make(place)
        except OSError as error:
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"no place for {plan.unit}: {error}") from error

    def cold_start(self, place: Place, plan: SandboxPlan) -> Start:
        """Of a worker that begins at once."""
        return Start(plan.limits, self.variables(place, plan))

    def warm_start(self, place: Place, plan: WarmPlan) -> Start:
        """Of a worker that waits to be told what it is."""
        return Start(plan.limits, self.common(place), ("--warm",))

    def recovery(self, place: Place, plan: SandboxPlan) -> Start:
        """Of a worker that says what the last one could not."""
        return Start(plan.limits, self.variables(place, plan, lost=_last_status(place)), ("--recover",))

    def common(self, place: Place) -> dict[str, str]:
        """The environment of whatever runs there; the worker's own is more."""
        return environment.common(self._seen(place), self._memory_group(place)) | self._toolchains()

    def entry(self, place: Place, worker: ProcessId) -> Entry:
        """Where a command runs that is started beside this worker."""
        seen = self._seen(place)
        return Entry(
            worker=worker,
            namespaced=self.host is not None,
            groups=self.groups.of(place.name),
            root=seen.place,
            variables=self.common(place),
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
        if self.host:
            command = bubblewrap.argv(self.host, place, groups=self._memory_group(place), info=3, command=command)
        return shim.argv(run, place.work, own, self.groups.of(place.name), command)

    def spawn(self, place: Place, run: Run, start: Start) -> int:
        """Start the shim of one run, and return its process id. Raises `RuntimeFailedError`."""
        line = self.line(place, run, start)
        try:
            return os.posix_spawn(
                line[0], line, start.variables, setsid=True, setsigmask=[], setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]
            )
        except OSError as error:
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"{place.name} did not start: {error}") from error

    def _seen(self, place: Place) -> environment.Paths:
        return environment.paths(place, inside=self.host is not None)

    def _make(self, place: Place, allowed: Limits) -> None:
        place.make()
        bubblewrap.write_accounts(place)
        self.groups.make(place.name, limits.for_group(allowed))

    def _toolchains(self) -> dict[str, str]:
        """Where the worker finds them."""
        seen = bubblewrap.TOOLCHAINS if self.host else self.toolchains
        return {"SANDHERD_TOOLCHAINS": str(seen)} if self.toolchains and seen else {}

    def _memory_group(self, place: Place) -> Path | None:
        return self.groups.memory / place.name if self.groups.memory else None


def _last_status(place: Place) -> int | None:
    """How the last run before this one ended."""
    ended = [run for run in place.runs() if run.exit.exists()]
    return shim.read_exit(ended[-1]) if ended else None
