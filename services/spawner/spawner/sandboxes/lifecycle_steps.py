"""The steps of a sandbox's lifecycle. `lifecycle.next_step` decides which is next; `step_runner.StepRunner` runs it."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Rest:
    """Nothing to do before `until`, or before a change."""

    until: datetime | None = None


@dataclass(frozen=True)
class Spawn:
    """Create the sandbox in its runtime."""


@dataclass(frozen=True)
class Pause:
    """Freeze the sandbox."""


@dataclass(frozen=True)
class Resume:
    """Unfreeze the sandbox."""


@dataclass(frozen=True)
class Recover:
    """Start a recovery worker, to publish undelivered events."""


@dataclass(frozen=True)
class BeginStop:
    """Record that the sandbox is ending, and why."""

    reason: str
    error: str | None = None


@dataclass(frozen=True)
class Stop:
    """Stop the worker and all processes of the sandbox."""


@dataclass(frozen=True)
class EndTask:
    """Record that the attempt in the sandbox failed."""

    error: str
    error_type: str


@dataclass(frozen=True)
class Fail:
    """Revoke the sandbox's credentials and record that it is lost."""

    error: str
    error_type: str


@dataclass(frozen=True)
class Finish:
    """Revoke the sandbox's credentials and record that it has ended."""

    unsaid: bool


@dataclass(frozen=True)
class Clear:
    """Remove the sandbox from its runtime; with `keep`, quarantine it instead."""

    keep: bool


Step = Rest | Spawn | Pause | Resume | Recover | BeginStop | Stop | EndTask | Fail | Finish | Clear
