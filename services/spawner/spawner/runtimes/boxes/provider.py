"""What a provider of boxes is asked, and what it may answer. A box is one sandbox, wherever it is made.

An adapter says what its vendor says in these words, and nothing else leaves it: no vendor's type, no vendor's error.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol, runtime_checkable

from sandherd.contracts.requests import Mount
from sandherd.contracts.specs import Limits
from spawner.runtimes.addresses import Address
from spawner.runtimes.commands import Command, File, Ran

__all__ = [
    "Abilities",
    "Address",
    "Addressing",
    "Box",
    "BoxSpec",
    "BoxState",
    "Command",
    "File",
    "ProgramEnd",
    "Provider",
    "ProviderError",
    "ProviderFault",
    "Ran",
]


class ProviderFault(StrEnum):
    """What can go wrong at a provider. A closed set: decisions are made by it, never by words in a text."""

    NOT_FOUND = "not_found"
    """It has no such box, image or file."""
    QUOTA = "quota"
    """There is no room for it under this account."""
    RATE_LIMITED = "rate_limited"
    """Asked too often; the error says for how long to wait, if the provider does."""
    REFUSED = "refused"
    """It will not, however often it is asked: what was asked for is wrong, not allowed, or can't be done there."""
    TRANSIENT = "transient"
    """It can't at this moment, or nobody answered: it may have been done."""
    TIMED_OUT = "timed_out"
    """It took too long: it may still be done."""


class ProviderError(Exception):
    """A provider did not do what was asked. The text never holds a credential."""

    def __init__(self, fault: ProviderFault, message: str, *, wait: float | None = None) -> None:
        super().__init__(message)
        self.fault = fault
        self.wait = wait
        """For how many seconds not to ask again, where the provider says so."""


class BoxState(StrEnum):
    """How a box stands at its provider."""

    CREATING = "creating"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    FAILED = "failed"
    """The provider has given it up; `Box.problem` says why."""
    REMOVING = "removing"


@dataclass(frozen=True)
class ProgramEnd:
    """How a box's program ended. `code` is a shell's exit status (128 + n after signal n); None when unknown."""

    code: int | None
    out_of_memory: bool = False
    reason: str = ""
    """What the provider says of it, for people: an eviction, a node that is gone."""


@dataclass(frozen=True, kw_only=True)
class Box:
    """A box as its provider shows it."""

    name: str
    """Ours."""
    id: str
    """The provider's."""
    labels: Mapping[str, str]
    state: BoxState
    created_at: datetime
    runs: int
    """How often its program was started, as far as the provider counts: at least 1 once it was."""
    end: ProgramEnd | None = None
    """How its program ended; None while it runs, and where it never did."""
    problem: str = ""
    aside: bool = False
    """Whether it was set aside, for a person to look at."""
    hollow: bool = False
    """Whether only what it held is left: one that is made anew under its name finds all of that."""

    @property
    def alive(self) -> bool:
        """Whether its program runs, stands still, or is about to run."""
        return self.end is None and self.state in {BoxState.CREATING, BoxState.RUNNING, BoxState.PAUSED}


@dataclass(frozen=True, kw_only=True)
class BoxSpec:
    """All that a provider needs to make one box. Variables, labels and arguments hold no secret; files may."""

    name: str
    labels: Mapping[str, str]
    image: str | None
    """The image or snapshot; None: what the provider is set to."""
    program: Sequence[str]
    """What runs in it, and for how long: the box ends with it."""
    environment: Mapping[str, str]
    files: Sequence[File]
    limits: Limits
    stop_grace: float
    ports: Sequence[int] = ()
    """Where a server in it may listen; none: wherever it likes."""
    profile: str | None = None
    """The kind of sandbox it was asked for as; a provider may place each kind elsewhere."""
    mounts: Sequence[Mount] = ()
    """Only for a provider that has the ability."""


@dataclass(frozen=True)
class Abilities:
    """What a provider can do beyond the rest. What it can't is refused with a text that says so."""

    pause: bool
    resize: bool = False
    ports: bool = False
    """Whether what listens in a box is reached from outside, by `Addressing`."""
    open_ports: tuple[int, ...] = ()
    """The only ones of them, where that is known before there is a box; none: any, or it is told of each box."""
    memory_limit: bool = True
    process_limit: bool = True
    cpu_limit: bool = True
    mounts: bool = False


class Provider(Protocol):
    """A place where boxes are made. All methods are safe to repeat; they raise `ProviderError` and nothing else."""

    name: str
    abilities: Abilities

    async def create(self, spec: BoxSpec) -> Box:
        """Make the box with its files and start its program, which finds all of them. One is there: it is that one.

        They may still be on their way when this returns.
        """

    async def get(self, name: str) -> Box | None:
        """The box of this name, as it is now."""

    async def find(self, labels: Mapping[str, str]) -> Sequence[Box]:
        """All boxes with these labels, also those that this process has not made."""

    async def start(self, name: str) -> None:
        """Start the program once more in a box whose program has ended. It runs: nothing happens."""

    async def stop(self, name: str, grace: float) -> None:
        """Ask the program to end, and end it after `grace` seconds. It has ended, or there is none: nothing happens."""

    async def pause(self, name: str) -> None:
        """Let every process of the box stand still."""

    async def resume(self, name: str) -> None:
        """Let it go on."""

    async def remove(self, name: str) -> None:
        """Remove the box with all that it holds. There is none: nothing happens."""

    async def set_aside(self, name: str) -> None:
        """Mark a box that has ended as kept for a person, in a way that every replica sees. There is none: nothing."""

    async def take_back(self, name: str) -> None:
        """Take the mark off again. There is none: nothing happens."""

    async def run(self, name: str, command: Command) -> Ran:
        """Run a command in a box that runs."""

    async def put(self, name: str, files: Collection[File]) -> None:
        """Put files there, each whole or not at all; also where the program has ended, if `start` is possible."""

    async def read(self, name: str, path: str, limit: int) -> bytes:
        """A file's content. Raises `refused` for one that is larger than `limit` bytes, `not_found` for none."""

    def changes(self) -> AsyncIterator[str]:
        """The names of boxes that have changed, as soon as it is known; it goes on until it is closed."""

    async def close(self) -> None:
        """Let go of everything; boxes live on."""


@runtime_checkable
class Addressing(Protocol):
    """What a provider has as well whose abilities say `ports`."""

    async def address(self, name: str, port: int) -> Address:
        """Where a port of a box is. Raises `refused` for one that there is no way to."""
