"""The commands from a worker to its driver, as objects."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

USER: Final = "user"
"""The origin of a turn that a user's message begins."""
EXPIRED: Final = "it expired before the agent could take it"
"""Why a message that was held for too long is refused."""


@dataclass(frozen=True)
class Resume:
    """The session to resume. `transcript` is its file; empty if the agent stores its sessions itself."""

    session_id: str
    transcript: str
    fork: bool = False


@dataclass(frozen=True)
class Begin:
    """Start the task; the first command, sent once."""

    task: str
    work_dir: str
    state_dir: str
    """A directory for the driver alone, initially empty; it is deleted after the attempt."""
    harness: Mapping[str, Any] = field(default_factory=dict)
    """The harness of the task's specification, as in `contracts.specs`."""
    resume: Resume | None = None

    @property
    def origin(self) -> str:
        """The origin of the first turn, as in `agent.turn_started`."""
        return "task" if self.resume is None else "resume"


@dataclass(frozen=True)
class Message:
    """A message for the agent, sent in any state. The driver replies by `report_taken` or `report_refused`."""

    message: str
    message_type: str
    content: str
    sender_id: str | None = None
    expires_at: float | None = None
    """In seconds since 1970. The sender is notified then that the message has expired, and the agent must not get it
    afterwards.
    """
    origin: str | None = None
    """The origin of a turn that this message begins, as in `agent.turn_started`."""

    def is_expired(self, now: float) -> bool:
        """Whether the message has expired, and must be refused."""
        return self.expires_at is not None and now >= self.expires_at


def origin_of_turn(messages: Iterable[str | None]) -> str | None:
    """The origin of a turn that messages of these origins begin: `user` if it is among them, else the first."""
    origins = list(messages)
    return USER if USER in origins else next(iter(origins), None)


@dataclass(frozen=True)
class Interrupt:
    """Stop the turn, but not the session."""


@dataclass(frozen=True)
class Decision:
    """Whether the agent may use the tool."""

    granted: bool
    reason: str | None = None
    by_user: bool = False
    """Whether a user decided; otherwise a rule did."""
    withdrawn: bool = False
    """Whether the turn ended before anything was decided."""

    @property
    def outcome(self) -> str:
        """The outcome of a call that was not granted."""
        return "cancelled" if self.withdrawn else "refused" if self.by_user else "denied"


@dataclass(frozen=True)
class Decide:
    """The decision about an approval request."""

    approval_id: str
    granted: bool
    reason: str | None = None
    by_user: bool = False


@dataclass(frozen=True)
class Stop:
    """Write the transcript, report it, and exit."""

    grace: float | None = None
    """How long the stop may take, in seconds, before the driver is killed; None for no limit."""


Command = Begin | Message | Interrupt | Decide | Stop


def _begin(resume: Mapping[str, Any] | None = None, **fields: Any) -> Begin:
    return Begin(**fields, resume=Resume(**resume) if resume else None)


_CONSTRUCTORS: Final[Mapping[str, Callable[..., Command]]] = {
    "begin": _begin,
    "message": Message,
    "interrupt": Interrupt,
    "decide": Decide,
    "stop": Stop,
}


def read_command(line: bytes) -> Command:
    """The command in a line. Raises `ValueError`, `TypeError` or `KeyError` for an invalid one."""
    document = json.loads(line)
    return _CONSTRUCTORS[document.pop("do")](**document)
