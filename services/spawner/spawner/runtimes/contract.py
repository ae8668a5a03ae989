"""What the spawner asks of a runtime, and what a runtime may answer. Nothing else drives one."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from sandherd.contracts.commands import Limits, SandboxSpec
from sandherd.contracts.failures import ErrorType
from sandherd.contracts.offers import Previous
from sandherd.contracts.requests import Mount

if TYPE_CHECKING:
    from spawner.runtimes.addresses import Address
    from spawner.runtimes.commands import Command, File, Ran

_USAGE: Final = 2
_NOT_STARTED: Final = 7
"""A worker's exit statuses for what it can't begin with, and for having had no leave to begin."""


class Isolation(StrEnum):
    """How far a sandbox is kept from the host and from other sandboxes."""

    BUBBLEWRAP = "bubblewrap"
    PROVIDER = "provider"
    """Another's: a container engine's, or a service's that rents sandboxes."""
    NONE = "none"


NOT_HELD: Final = "none"
"""What a runtime says of a limit that it does not hold a sandbox to."""


class RuntimeFault(StrEnum):
    """What can go wrong at a runtime. A closed set: decisions are made by it, never by words in a text."""

    REFUSED = ErrorType.RUNTIME_REFUSED  # it will never make this sandbox as asked, or can't do such a thing at all
    UNAVAILABLE = ErrorType.RUNTIME_UNAVAILABLE
    """It can't at this moment, or has not answered: it may have done it. The same may be asked again."""
    QUOTA = ErrorType.RUNTIME_QUOTA  # there is no room for it now
    LOST = ErrorType.SANDBOX_LOST
    """It has no such sandbox."""


class RuntimeFailedError(Exception):
    """A runtime did not do what was asked. `fault` says of what kind."""

    def __init__(self, fault: RuntimeFault, message: str, *, wait: float | None = None) -> None:
        super().__init__(message)
        self.fault = fault
        self.wait = wait
        """For how many seconds not to ask again, where the runtime says so."""

    @property
    def permanent(self) -> bool:
        """Whether asking again is of no use."""
        return self.fault not in {RuntimeFault.UNAVAILABLE, RuntimeFault.QUOTA}


@dataclass(frozen=True, kw_only=True)
class SandboxPlan:
    """All that a runtime needs to make one sandbox. `joiner` is the text of its credentials file: a secret."""

    project: str
    sandbox: str
    unit: str
    """What the runtime is to know it by: its own name, or that of one that was prepared beforehand."""
    task: str | None
    attempt: int
    fence: int
    spec: SandboxSpec
    """A `TaskSpec` where there is a task."""
    limits: Limits
    mounts: Sequence[Mount] = ()
    user_namespaces: bool = False
    """Whether its profile lets what runs in it make user namespaces."""
    previous: Previous | None = None
    max_work_bytes: int = 0
    """The largest archive of its work tree that is put by if the attempt fails."""
    joiner: str
    nats_url: str
    heartbeat_interval: float
    stop_grace: float
    """How long the worker has between being asked to end and being ended, in seconds."""
    traceparent: str | None = None


@dataclass(frozen=True, kw_only=True)
class WarmPlan:
    """All that a runtime needs to start a sandbox that nobody has claimed: no identity, no credential, no secret."""

    unit: str
    limits: Limits
    user_namespaces: bool = False
    """Whether its profile lets what runs in it make user namespaces."""
    profile: str | None = None
    """Of the sandboxes that it may become."""


@dataclass(frozen=True)
class RunEnd:
    """How a run of the worker ended. `code` is a shell's exit status (128 + n after signal n), None when unknown."""

    code: int | None
    out_of_memory: bool = False
    last_line: str = ""
    """The last thing on its standard error, for people."""
    gone: bool = False
    """Whether its runtime has given the sandbox up, with all that it held: nothing in it can be started again."""

    @property
    def drained(self) -> bool:
        """Whether all that the worker said is acknowledged by the broker: it ends with 0 only then."""
        return self.code == 0

    @property
    def never_spoke(self) -> bool:
        """Whether it did not even begin, so that there is nothing to recover."""
        return self.code in {_USAGE, _NOT_STARTED}

    @property
    def not_started(self) -> bool:
        """Whether it was ended before its agent had begun."""
        return self.code == _NOT_STARTED


@dataclass(frozen=True)
class Seen:
    """A sandbox as it really is: what the runtime finds, whatever any record says."""

    unit: str
    """What the runtime knows it by."""
    alive: bool
    runs: int = 0
    """How often a worker was started in it."""
    end: RunEnd | None = None
    """How the last run ended; None while it lives, and where none was ever started."""
    project: str | None = None
    """Whose it is, by what it was labelled with when it was made."""
    since: float = 0.0
    """When it was made, in seconds since 1970; always the same for the same sandbox."""
    frozen: bool | None = None
    """Whether it stands still, or is about to, because its runtime was asked for that; None where that is not known."""


@dataclass(frozen=True)
class Capabilities:
    """What a runtime can promise here, found out once at its start."""

    isolation: Isolation
    memory: str
    """What holds memory in its limit: `cgroup` (the sandbox as a whole), `rlimit` (each process for itself),
    `provider` (whoever makes it), or `none`."""
    processes: str
    """What limits the number of processes: `cgroup`, `rlimit`, `provider`, or `none`."""
    cores: str = NOT_HELD
    """What holds a sandbox to its cores: `cgroup`, `provider`, or `none`."""
    disk: str = ""
    """What limits what a sandbox writes to disk: `file system`, or `none`; empty where that is not known."""
    can_pause: bool = False
    ports: bool = False
    """Whether what listens in a sandbox can be reached from outside, by `Runtime.address`."""
    can_prepare: bool = False
    """Whether it can start sandboxes beforehand, for the pool."""
    images: bool = False
    """Whether it makes sandboxes of images, or of snapshots."""
    mounts: bool = False
    """Whether a sandbox may find there what its profile mounts."""
    gaps: tuple[str, ...] = ()
    """What sandboxes are not protected from here though other hosts could do it, each with what would change that."""
    network: str = ""
    """What sandboxes reach (`contracts.network.NetworkMode`); nothing: whoever makes them decides."""
    host_uid: str = ""
    """Under whose uid of the host sandboxes run: `own`, `subordinate`, `spawner` or `root`; empty: not known."""


class Runtime(Protocol):
    """A place where sandboxes are made. All methods are safe to repeat; they raise `RuntimeFailedError`.

    `unit` is what a sandbox was made as: the `unit` of its plan.
    """

    name: str
    capabilities: Capabilities

    def on_exit(self, tell: Callable[[str], None]) -> None:
        """From now on `tell(unit)` is called when the worker of a sandbox has ended."""

    async def prepare(self, plan: WarmPlan) -> None:
        """Start a sandbox whose worker waits for its identity. Done already: nothing happens."""

    async def create(self, plan: SandboxPlan) -> None:
        """Make the sandbox and start its worker, or give a prepared one its identity. Done already: nothing happens."""

    async def recover(self, plan: SandboxPlan) -> None:
        """Start the worker once more in a sandbox whose worker died, to say what is left unsaid."""

    async def pause(self, unit: str) -> None:
        """Freeze every process of the sandbox. Raises `refused` where that can't be done."""

    async def resume(self, unit: str) -> None:
        """Let it go on."""

    async def stop(self, unit: str, grace: float) -> None:
        """Ask the worker to end, wait up to `grace` seconds, then end every process of the sandbox, frozen or not."""

    async def leave(self, unit: str) -> None:
        """Give back what a stopped sandbox holds of the host beside its files, but nothing that tells how it ended."""

    async def look(self, unit: str) -> Seen | None:
        """The sandbox as it is, or None if there is none."""

    async def find_all(self) -> list[Seen]:
        """All that is really there, wanted or not."""

    async def remove(self, unit: str) -> None:
        """End every process of the sandbox and remove what it leaves on the host."""

    async def run(self, unit: str, command: "Command") -> "Ran":
        """Run a command beside the worker of a sandbox that runs. At its time limit all that it has started is ended.

        Its folder, like every path here, begins with one of the sandbox's own: see `spawner.runtimes.commands.OWN`.
        """

    async def put(self, unit: str, files: "Collection[File]") -> None:
        """Put files into the sandbox, each whole or not at all. No link of the agent's leads one out of it."""

    async def read(self, unit: str, path: str, limit: int) -> bytes | None:
        """A file's content, or None if there is none. Raises `refused` for one of more than `limit` bytes."""

    async def address(self, unit: str, port: int) -> "Address":
        """Where a port of the sandbox is, for whoever may reach it. Raises `refused` where there is no way to it."""

    async def keep(self, unit: str) -> None:
        """Put what it leaves aside for a person to look at: something in it was never said."""

    async def find_kept(self) -> list[str]:
        """The sandboxes whose things were put aside."""

    async def take_back(self, unit: str) -> None:
        """Put back what was put aside, so that it can be recovered. It is not there any more: nothing happens."""

    async def close(self) -> None:
        """Let go of everything; sandboxes live on."""


def able(runtimes: Mapping[str, Runtime]) -> dict[str, Capabilities]:
    """What each of these can do here."""
    return {name: runtime.capabilities for name, runtime in runtimes.items()}
