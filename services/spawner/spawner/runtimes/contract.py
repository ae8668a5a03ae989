"""The interface of runtimes: the methods that the spawner calls, and their results."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

from sandherd.contracts.attempt_inputs import Previous
from sandherd.contracts.commands import SandboxLimits, SandboxSpec
from sandherd.contracts.requests import CredentialGrant, Mount
from spawner.runtimes.commands import Address, Command, CommandResult, File
from spawner.runtimes.errors import RuntimeFailedError, RuntimeFault

__all__ = [
    "NOT_ENFORCED",
    "Capabilities",
    "Isolation",
    "ObservedSandbox",
    "RunEnd",
    "Runtime",
    "RuntimeFailedError",
    "RuntimeFault",
    "SandboxPlan",
    "WarmPlan",
    "capabilities_of",
]

_INVALID_INPUT: Final = 2
"""A worker's exit status for invalid input."""
_SPOOL_FAILED: Final = 5
"""A worker's exit status if it can't write its spool."""
_NOT_STARTED: Final = 7
"""A worker's exit status if it was not permitted to begin."""
_DISK_REFUSED: Final = 8
"""A worker's exit status if it can't write its spool, but has published all events."""


class Isolation(StrEnum):
    """What separates a sandbox from the host and from other sandboxes."""

    BUBBLEWRAP = "bubblewrap"
    PROVIDER = "provider"
    """The isolation of a container engine or a cloud service."""
    NONE = "none"


NOT_ENFORCED: Final = "none"
"""The value of a limit that a runtime does not enforce."""


@dataclass(frozen=True, kw_only=True)
class SandboxPlan:
    """What a runtime needs to create a sandbox. `joiner` is the content of the sandbox's credentials file: a secret."""

    project: str
    sandbox: str
    unit: str
    """The sandbox's name in the runtime: its own name, or the name of the warm sandbox that it takes over."""
    task: str | None
    attempt: int
    fence: int
    spec: SandboxSpec
    """A `TaskSpec` if there is a task."""
    limits: SandboxLimits
    mounts: Sequence[Mount] = ()
    repository: Path | None = None
    """The mirror of the task's repository, to be mounted read-only. None: no repository, or it is sent as a bundle."""
    user_namespaces: bool = False
    """Whether the profile allows processes in the sandbox to create user namespaces."""
    previous: Previous | None = None
    max_work_bytes: int = 0
    """Maximum size in bytes of the archive of the work tree that is stored if the attempt fails."""
    joiner: str
    grant: CredentialGrant | None = None
    """A credential for the key of a warm sandbox's worker. None: the worker requests one."""
    nats_url: str
    tls: Mapping[str, str] = field(default_factory=dict)
    """The PEM texts for the connection to the broker, by the environment variable of each file; the key is a secret."""
    heartbeat_interval: float
    stop_grace: float
    """Seconds between the request to the worker to end and killing it."""
    traceparent: str | None = None
    git_proxy: str | None = None
    """The URL of the git proxy if the task uses it. The sandbox's network must allow it, like the broker."""


@dataclass(frozen=True, kw_only=True)
class WarmPlan:
    """What a runtime needs to start an unclaimed sandbox: no identity, no credential, no secret."""

    unit: str
    limits: SandboxLimits
    user_namespaces: bool = False
    """Whether the profile allows processes in the sandbox to create user namespaces."""
    profile: str | None = None
    """The profile of the sandboxes that may claim this one."""


@dataclass(frozen=True)
class RunEnd:
    """How a run of the worker ended. `code` is a shell's exit status (128 + n after signal n), None when unknown."""

    code: int | None
    out_of_memory: bool = False
    last_line: str = ""
    """The last line of its standard error, for users."""
    recovered_code: int | None = None
    """The exit status of the run that this run recovered; None if it recovered none, or if the status is unknown."""
    files_deleted: bool = False
    """Whether its runtime has deleted the sandbox with its files, so that no worker can be started in it again."""

    @property
    def drained(self) -> bool:
        """Whether the broker has acknowledged all events of the worker. Its exit status shows that."""
        return self.code in {0, _DISK_REFUSED}

    @property
    def ended_before_events(self) -> bool:
        """Whether the worker ended before it published an event, so that the sandbox has no events to recover."""
        return self.code in {_INVALID_INPUT, _NOT_STARTED}

    @property
    def disk_refused(self) -> bool:
        """Whether the worker ended because it could not write its spool, as on a full or broken disk."""
        return not {_SPOOL_FAILED, _DISK_REFUSED}.isdisjoint({self.code, self.recovered_code})

    @property
    def not_started(self) -> bool:
        """Whether the worker was not permitted to begin, so that its agent never started."""
        return self.code == _NOT_STARTED


@dataclass(frozen=True)
class ObservedSandbox:
    """The actual state of a sandbox, as its runtime finds it; its record may differ."""

    unit: str
    """The sandbox's name in the runtime."""
    alive: bool
    runs: int = 0
    """How often a worker was started in the sandbox."""
    end: RunEnd | None = None
    """How the last run ended; None while a worker runs, and if none was ever started."""
    project: str | None = None
    """The sandbox's project, from the label that was set when the sandbox was created."""
    since: float = 0.0
    """When it was created, in seconds since 1970; always the same for the same sandbox."""
    frozen: bool | None = None
    """Whether the sandbox is frozen, or its runtime was requested to freeze it; None if not known."""
    disruption: str = ""
    """Why the runtime ends the sandbox without our request, such as an eviction; empty if it does not end it."""


@dataclass(frozen=True)
class Capabilities:
    """What a runtime supports on this host. It is determined when the runtime is opened."""

    isolation: Isolation
    memory: str
    """What limits the memory: `cgroup` (of the whole sandbox), `rlimit` (of each process), `provider`, or `none`."""
    processes: str
    """What limits the number of processes: `cgroup`, `rlimit`, `provider`, or `none`."""
    cores: str = NOT_ENFORCED
    """What enforces the number of cores: `cgroup`, `provider`, or `none`."""
    disk: str = ""
    """What limits the disk usage of a sandbox: `file system`, or `none`; empty if that is not known."""
    can_pause: bool = False
    ports: bool = False
    """Whether a listening port of a sandbox can be reached from outside, by `Runtime.address`."""
    can_prepare: bool = False
    """Whether the runtime can start sandboxes in advance, for the pool."""
    images: bool = False
    """Whether the runtime creates sandboxes from images or snapshots."""
    mounts: bool = False
    """Whether the runtime supports the mounts of profiles."""
    mounts_repository: bool = False
    """Whether the runtime mounts `SandboxPlan.repository`."""
    volumes_only: bool = False
    """Whether mounts of profiles must be volumes, because the runtime can't mount folders of a host."""
    gaps: tuple[str, ...] = ()
    """Protections that sandboxes lack on this host, but have on other hosts, each with a remedy."""
    network: str = ""
    """What sandboxes can reach (`contracts.network.NetworkMode`); empty if the provider decides."""
    host_uid: str = ""
    """The host uid of sandboxes: `own`, `subordinate`, `spawner` or `root`; empty if not known."""
    worker_start: str = ""
    """How workers are started: `fork` or `exec`; empty if not known."""
    unusable: str = ""
    """Why the runtime can create no sandbox at all, so that every request for one is rejected; empty if it can."""


class Runtime(Protocol):
    """Creates and ends sandboxes. All methods can be repeated safely, and raise `RuntimeFailedError`.

    `unit` is the field of the plan that the sandbox was created from.
    """

    name: str
    capabilities: Capabilities

    def on_exit(self, notify: Callable[[str], None]) -> None:
        """Call `notify(unit)` from now on whenever the worker of a sandbox has ended."""

    async def prepare(self, plan: WarmPlan) -> str | None:
        """Start a warm sandbox, whose worker waits for its identity. Does nothing if that was done before.

        Returns the public key with which the worker will connect, if the worker has already created its key.
        """

    async def create(self, plan: SandboxPlan) -> None:
        """Create the sandbox and start its worker, or give a warm one its identity, unless that was done before."""

    async def recover(self, plan: SandboxPlan) -> None:
        """Start a worker in a sandbox whose worker was lost, to publish the events that the lost worker left."""

    async def pause(self, unit: str) -> None:
        """Freeze every process of the sandbox. The fault is `REFUSED` if that is not supported."""

    async def resume(self, unit: str) -> None:
        """Continue a frozen sandbox."""

    async def stop(self, unit: str, grace: float) -> None:
        """Request the worker to end, wait up to `grace` seconds, then end all processes, also frozen ones."""

    async def release(self, unit: str) -> None:
        """Release the host's resources that a stopped sandbox uses, except its files and the record of its end."""

    async def observe(self, unit: str) -> ObservedSandbox | None:
        """The state of the sandbox, or None if it does not exist."""

    async def find_all(self) -> list[ObservedSandbox]:
        """All existing sandboxes, also those without a record."""

    async def remove(self, unit: str) -> None:
        """End every process of the sandbox and remove its files."""

    async def run(self, unit: str, command: Command) -> CommandResult:
        """Run a command beside the worker of a running sandbox. On timeout it is killed with all its descendants.

        The command's folder, like every path in this interface, begins with one of `spawner.runtimes.commands.OWN`.
        """

    async def write_files(self, unit: str, files: Collection[File]) -> None:
        """Write files into the sandbox, each atomically. A link that the agent has created never leads out of it."""

    async def read(self, unit: str, path: str, limit: int) -> bytes | None:
        """A file's content, or None if it does not exist. The fault is `REFUSED` if it has more than `limit` bytes."""

    async def address(self, unit: str, port: int) -> Address:
        """The address of a port of the sandbox. The fault is `REFUSED` if the port can't be reached."""

    async def quarantine(self, unit: str) -> None:
        """Move the files of a sandbox to quarantine, because events in it were never published."""

    async def list_quarantined(self) -> list[str]:
        """The sandboxes in quarantine."""

    async def unquarantine(self, unit: str) -> None:
        """Move a sandbox out of quarantine, so that it can be recovered. Does nothing if it is not in quarantine."""

    async def close(self) -> None:
        """Release all resources; sandboxes continue."""


def capabilities_of(runtimes: Mapping[str, Runtime]) -> dict[str, Capabilities]:
    """The capabilities of each runtime."""
    return {name: runtime.capabilities for name, runtime in runtimes.items()}
