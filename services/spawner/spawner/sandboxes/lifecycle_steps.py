"""The steps of a sandbox's lifecycle. `lifecycle.next_step` decides which is next; `step_runner.StepRunner` runs it."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Rest:
    """Nothing to do before `until`, or before a change."""

    until: datetime | None = None


@dataclass(frozen=True)
class Spawn:
    """Create it in its runtime."""


@dataclass(frozen=True)
class Pause:
    """Freeze it."""


@dataclass(frozen=True)
class Resume:
    """Unfreeze it."""


@dataclass(frozen=True)
class Recover:
    """Start a recovery worker, to publish undelivered events."""


@dataclass(frozen=True)
class BeginStop:
    """Record that it is ending, and why."""

    reason: str
    error: str | None = None


@dataclass(frozen=True)
class Stop:
    """Stop its worker and all its processes."""


@dataclass(frozen=True)
class EndTask:
    """Record that its task's attempt failed."""

    error: str
    error_type: str


@dataclass(frozen=True)
class Fail:
    """Revoke its credentials and record that it is lost."""

    error: str
    error_type: str


@dataclass(frozen=True)
class Finish:
    """Revoke its credentials and record that it has ended."""

    unsaid: bool


@dataclass(frozen=True)
class Clear:
    """Remove its files from the host; `keep` quarantines them instead."""

    keep: bool


Step = Rest | Spawn | Pause | Resume | Recover | BeginStop | Stop | EndTask | Fail | Finish | Clear
