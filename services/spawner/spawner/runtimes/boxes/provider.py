"""The interface of a provider of boxes. A box is one sandbox as a provider's API shows it.

An adapter translates its vendor's API into these types; no vendor type and no vendor error leaves it.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Protocol, runtime_checkable

from sandherd.contracts.requests import Mount
from sandherd.contracts.specs import SandboxLimits
from spawner.runtimes.commands import Address, Command, CommandResult, File

__all__ = [
    "Abilities",
    "Address",
    "Box",
    "BoxSpec",
    "BoxState",
    "Command",
    "CommandResult",
    "File",
    "PortProvider",
    "ProgramEnd",
    "Provider",
    "ProviderError",
    "ProviderFault",
]


class ProviderFault(StrEnum):
    """The kinds of provider errors. A closed set: decisions depend on it, never on the text of a message."""

    NOT_FOUND = "not_found"
    """The provider has no such box, image or file."""
    QUOTA = "quota"
    """The account has no capacity left for the request."""
    RATE_LIMITED = "rate_limited"
    """Too many requests were sent. `ProviderError.wait` is the delay that the provider requests, if any."""
    REFUSED = "refused"
    """A retry will not succeed: the request is invalid, not permitted, or not supported by the provider."""
    TRANSIENT = "transient"
    """The provider failed temporarily or did not reply: it may have executed the request."""
    TIMED_OUT = "timed_out"
    """The request timed out: the provider may still execute it."""


class ProviderError(Exception):
    """A request to a provider failed. The message never contains a credential."""

    def __init__(self, fault: ProviderFault, message: str, *, wait: float | None = None) -> None:
        super().__init__(message)
        self.fault = fault
        self.wait = wait
        """The delay in seconds before a retry, if the provider sent one."""


class BoxState(StrEnum):
    """The state of a box at its provider."""

    CREATING = "creating"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    FAILED = "failed"
    """The box failed at the provider; `Box.problem` has the reason."""
    REMOVING = "removing"


@dataclass(frozen=True)
class ProgramEnd:
    """How a box's program ended. `code` is a shell's exit status (128 + n after signal n); None when unknown."""

    code: int | None
    out_of_memory: bool = False
    reason: str = ""
    """The provider's reason, for users, such as an eviction or a lost node."""

    def __str__(self) -> str:
        """For error messages: `exit status 137, out of memory, <reason>`."""
        status = "exit status unknown" if self.code is None else f"exit status {self.code}"
        return ", ".join(filter(None, (status, "out of memory" if self.out_of_memory else "", self.reason)))


@dataclass(frozen=True, kw_only=True)
class Box:
    """A box as its provider shows it."""

    name: str
    """The name given by the spawner."""
    id: str
    """The provider's id."""
    labels: Mapping[str, str]
    state: BoxState
    created_at: datetime
    runs: int
    """How often its program was started. A provider that does not count starts reports at least 1 after the first."""
    end: ProgramEnd | None = None
    """How its program ended; None while it runs, or if it never ran."""
    problem: str = ""
    disruption: str = ""
    """Why the provider ends the box, although the program may still run; empty if the provider does not end it."""
    quarantined: bool = False
    """Whether the box was quarantined, so that a user can inspect it."""
    hollow: bool = False
    """Whether only the box's data is left. A new box with the same name finds all of that data."""

    @property
    def alive(self) -> bool:
        """Whether its program runs, is paused, or is about to run."""
        return self.end is None and self.state in {BoxState.CREATING, BoxState.RUNNING, BoxState.PAUSED}


@dataclass(frozen=True, kw_only=True)
class BoxSpec:
    """All that a provider needs to create a box. Variables, labels and arguments contain no secrets; files may."""

    name: str
    labels: Mapping[str, str]
    image: str | None
    """The image or snapshot; None: the one that is configured for the provider."""
    program: Sequence[str]
    """The command line of the program that runs in the box. The box ends when the program ends."""
    environment: Mapping[str, str]
    files: Sequence[File]
    limits: SandboxLimits
    stop_grace: float
    ports: Sequence[int] = ()
    """The ports on which a server in the box may listen; empty: any port."""
    profile: str | None = None
    """The requested sandbox profile; a provider may place the boxes of each profile differently."""
    mounts: Sequence[Mount] = ()
    """Only for a provider whose abilities include `mounts`."""
    repository: Path | None = None
    """The mirror of its task's repository, to be mounted read-only at `MOUNTED` of `sandherd.contracts.repositories`;
    only for a provider whose abilities include `mounts_repository`."""
    recovers: bool = False
    """Whether the box must get the data of a hollow box. If that data no longer exists, `create` raises `not_found`."""


@dataclass(frozen=True)
class Abilities:
    """Optional features of a provider. Requests for a missing feature are refused with a message that names it."""

    pause: bool
    ports: bool = False
    """Whether servers in a box can be reached from outside, through `PortProvider`."""
    open_ports: tuple[int, ...] = ()
    """The only reachable ports, if they are the same for all boxes; empty: any port, or each box has its own."""
    memory_limit: bool = True
    process_limit: bool = True
    cpu_limit: bool = True
    mounts: bool = False
    volumes_only: bool = False
    """Whether mounts must be volumes, because the provider can't mount folders of a host."""
    mounts_repository: bool = False
    """Whether its boxes see the spawner's mirrors of repositories, so that it mounts `BoxSpec.repository`."""


class Provider(Protocol):
    """A service that creates boxes. All methods are idempotent; they raise `ProviderError` and nothing else."""

    name: str
    abilities: Abilities

    async def create(self, spec: BoxSpec) -> Box:
        """Create the box with its files, and start its program once all files exist. Returns an existing box as it is.

        This may return before the files are written and the program is started.
        """

    async def get(self, name: str) -> Box | None:
        """The box with this name in its current state, or None."""

    async def find(self, labels: Mapping[str, str]) -> Sequence[Box]:
        """All boxes with these labels, including those that another process created."""

    async def start(self, name: str) -> None:
        """Start the program again in a box whose program has ended. Does nothing if the program runs."""

    async def stop(self, name: str, grace: float) -> None:
        """Request the program to end; kill it after `grace` seconds. Does nothing for an ended or missing box."""

    async def pause(self, name: str) -> None:
        """Pause every process of the box."""

    async def resume(self, name: str) -> None:
        """Resume every process of the box."""

    async def remove(self, name: str) -> None:
        """Remove the box with all its data. Does nothing if it does not exist."""

    async def mark_quarantined(self, name: str) -> None:
        """Mark an ended box as quarantined for a user, visible to every replica. Does nothing if it does not exist."""

    async def unmark_quarantined(self, name: str) -> None:
        """Remove the mark that `mark_quarantined` sets. Does nothing if the box does not exist."""

    async def run(self, name: str, command: Command) -> CommandResult:
        """Run a command in a running box."""

    async def write_files(self, name: str, files: Collection[File]) -> None:
        """Write files, each atomically; also after the program has ended, as long as `start` is possible."""

    async def read(self, name: str, path: str, limit: int) -> bytes:
        """Return a file's content. Raises `refused` if it exceeds `limit` bytes, `not_found` if it does not exist."""

    def changes(self) -> AsyncIterator[str]:
        """Yield the name of each box that changes, until the iterator is closed."""

    async def close(self) -> None:
        """Close all connections; boxes continue to run."""


@runtime_checkable
class PortProvider(Protocol):
    """Additional interface of a provider whose abilities include `ports`."""

    async def address(self, name: str, port: int) -> Address:
        """The address of a port of a box. Raises `refused` for a port that can't be reached."""
