"""What a worker tells a driver, as objects."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

EXPIRED: Final = "it has expired before the agent could take it"
"""Why a message is refused that was held for too long."""


@dataclass(frozen=True)
class Resume:
    """The session to go on with, and the file that it was kept in; empty if its agent keeps it itself."""

    session_id: str
    transcript: str
    fork: bool = False


@dataclass(frozen=True)
class Begin:
    """Begin with the task; it comes first, and once."""

    task: str
    work_dir: str
    state_dir: str
    """A directory for the driver alone, empty at first; nothing in it outlives the attempt."""
    harness: Mapping[str, Any] = field(default_factory=dict)
    """The specification's harness, as `contracts.specs` has it."""
    resume: Resume | None = None


@dataclass(frozen=True)
class Message:
    """Give this to the agent, in the middle of whatever it does; to be answered by `taken` or `refused`."""

    message: str
    message_type: str
    content: str
    sender_id: str | None = None
    expires_at: float | None = None
    """In seconds since 1970. Its sender is told then that it has expired, so that the agent may not be given it."""

    def expired(self, now: float) -> bool:
        """Whether it is to be refused."""
        return self.expires_at is not None and now >= self.expires_at


@dataclass(frozen=True)
class Interrupt:
    """Stop the turn and keep the session."""


@dataclass(frozen=True)
class Decision:
    """Whether the agent may."""

    granted: bool
    reason: str | None = None


@dataclass(frozen=True)
class Decide:
    """The answer to what was asked."""

    approval_id: str
    granted: bool
    reason: str | None = None


@dataclass(frozen=True)
class Stop:
    """End in order: keep the transcript, say it, and leave."""

    grace: float | None = None
    """How long that may take, in seconds, before it is ended by force; None: as long as it wants."""


Command = Begin | Message | Interrupt | Decide | Stop


def _begin(resume: Mapping[str, Any] | None = None, **fields: Any) -> Begin:
    return Begin(**fields, resume=Resume(**resume) if resume else None)


_MAKE: Final[Mapping[str, Callable[..., Command]]] = {
    "begin": _begin,
    "message": Message,
    "interrupt": Interrupt,
    "decide": Decide,
    "stop": Stop,
}


def read_command(line: bytes) -> Command:
    """The command in a line. Raises `ValueError`, `TypeError` or `KeyError` for what is none."""
    document = json.loads(line)
    return _MAKE[document.pop("do")](**document)
