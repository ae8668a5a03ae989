"""The steps by which a sandbox is led to its end; `lifecycle.next_step` says which, `steps.Steps` does it."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Rest:
    """Nothing to do before `until`, or before something happens."""

    until: datetime | None = None


@dataclass(frozen=True)
class Spawn:
    """Have the runtime make it."""


@dataclass(frozen=True)
class Pause:
    """Have the runtime freeze it."""


@dataclass(frozen=True)
class Resume:
    """Have the runtime let it go on."""


@dataclass(frozen=True)
class Recover:
    """Start a worker once more, to say what is left unsaid."""


@dataclass(frozen=True)
class BeginStop:
    """Write down that it is to be ended, and why."""

    reason: str
    error: str | None = None


@dataclass(frozen=True)
class Stop:
    """End its worker, and every process with it."""


@dataclass(frozen=True)
class EndTask:
    """Its task's attempt has failed in it."""

    error: str
    error_type: str


@dataclass(frozen=True)
class Fail:
    """Take back its credentials and write down that it is lost."""

    error: str
    error_type: str


@dataclass(frozen=True)
class Finish:
    """Take back its credentials and write down that it is gone."""

    unsaid: bool


@dataclass(frozen=True)
class Clear:
    """Remove what it left on the host; `keep` puts it aside instead."""

    keep: bool


Step = Rest | Spawn | Pause | Resume | Recover | BeginStop | Stop | EndTask | Fail | Finish | Clear
