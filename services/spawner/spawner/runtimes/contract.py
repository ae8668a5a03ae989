"""What the spawner asks of a runtime, and what a runtime may answer. Nothing else drives one."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from sandherd.contracts.commands import TaskSpec

_USAGE: Final = 2


class Isolation(StrEnum):
    """How far a sandbox is kept from the host and from other sandboxes."""

    BUBBLEWRAP = "bubblewrap"
    NONE = "none"


class RuntimeFault(StrEnum):
    """What can go wrong at a runtime. A closed set: decisions are made by it, never by words in a text."""

    REFUSED = "runtime_refused"
    """It will never make this sandbox as asked."""
    UNAVAILABLE = "runtime_unavailable"
    """It can't at this moment; the same may work later."""
    LOST = "sandbox_lost"
    """It has no such sandbox."""


class RuntimeFailedError(Exception):
    """A runtime did not do what was asked. `fault` says of what kind."""

    def __init__(self, fault: RuntimeFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault

    @property
    def permanent(self) -> bool:
        """Whether asking again is of no use."""
        return self.fault is not RuntimeFault.UNAVAILABLE


@dataclass(frozen=True, kw_only=True)
class SandboxPlan:
    """All that a runtime needs to make one sandbox. `joiner` is the text of its credentials file: a secret."""

    project: str
    sandbox: str
    task: str
    attempt: int
    fence: int
    spec: TaskSpec
    joiner: str
    nats_url: str
    heartbeat_interval: float
    stop_grace: float
    """How long the worker has between being asked to end and being ended, in seconds."""
    traceparent: str | None = None


@dataclass(frozen=True)
class RunEnd:
    """How a run of the worker ended. `code` is a shell's exit status (128 + n after signal n), None when unknown."""

    code: int | None
    out_of_memory: bool = False
    last_line: str = ""
    """The last thing on its standard error, for people."""

    @property
    def drained(self) -> bool:
        """Whether all that the worker said is acknowledged by the broker: it ends with 0 only then."""
        return self.code == 0

    @property
    def never_spoke(self) -> bool:
        """Whether it could not even begin (usage): there is nothing to recover."""
        return self.code == _USAGE


@dataclass(frozen=True)
class Seen:
    """A sandbox as it really is: what the runtime finds, whatever any record says."""

    sandbox: str
    alive: bool
    runs: int = 0
    """How often a worker was started in it."""
    end: RunEnd | None = None
    """How the last run ended; None while it lives, and where none was ever started."""
    project: str | None = None
    """Whose it is, by what it was labelled with when it was made."""
    since: float = 0.0
    """When it was made, in seconds since 1970; always the same for the same sandbox."""


@dataclass(frozen=True)
class Capabilities:
    """What a runtime can promise here, found out once at its start."""

    isolation: Isolation
    memory: str
    """What holds memory in its limit: `cgroup` (the sandbox as a whole) or `rlimit` (each process for itself)."""
    processes: str
    """What limits the number of processes: `cgroup`, `rlimit`, or `none`."""


class Runtime(Protocol):
    """A place where sandboxes are made. All methods are safe to repeat; they raise `RuntimeFailedError`."""

    name: str
    capabilities: Capabilities

    def on_exit(self, tell: Callable[[str], None]) -> None:
        """From now on `tell(sandbox)` is called when the worker of a sandbox has ended."""

    async def create(self, plan: SandboxPlan) -> None:
        """Make the sandbox and start its worker. Done already: nothing happens."""

    async def recover(self, plan: SandboxPlan) -> None:
        """Start the worker once more in a sandbox whose worker died, to say what is left unsaid."""

    async def stop(self, sandbox: str, grace: float) -> None:
        """Ask the worker to end, wait up to `grace` seconds, then end every process of the sandbox."""

    async def leave(self, sandbox: str) -> None:
        """Give back what a stopped sandbox holds of the host beside its files, but nothing that tells how it ended."""

    async def look(self, sandbox: str) -> Seen | None:
        """The sandbox as it is, or None if there is none."""

    async def find_all(self) -> list[Seen]:
        """All that is really there, wanted or not."""

    async def remove(self, sandbox: str) -> None:
        """End every process of the sandbox and remove what it leaves on the host."""

    async def keep(self, sandbox: str) -> None:
        """Put what it leaves aside for a person to look at: something in it was never said."""

    async def find_kept(self) -> list[str]:
        """The sandboxes whose things were put aside."""

    async def take_back(self, sandbox: str) -> None:
        """Put back what was put aside, so that it can be recovered. It is not there any more: nothing happens."""

    async def close(self) -> None:
        """Let go of everything; sandboxes live on."""
