"""What can be asked for here: runtimes, profiles, harnesses, caps; and a look at what is really there."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from sandherd.contracts.names import SafeName
from sandherd.contracts.quantities import Attempt, Count
from sandherd.contracts.requests.base import Request
from sandherd.contracts.specs import Limits


class RuntimeView(BaseModel):
    """A runtime, and what it can do here."""

    runtime: SafeName
    default: bool = False
    isolation: str | None = None
    can_pause: bool = False
    memory: str = ""
    """What holds memory in its limit."""
    processes: str = ""
    """What limits the number of processes."""
    limit: Count | None = None
    """How many sandboxes may live in it at once; None: as many as in all."""


class Profile(BaseModel):
    """A named kind of sandbox, from the herd's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    runtime: SafeName | None = None
    """None: the herd's default."""
    limits: Limits | None = None
    env: dict[str, str] = Field(default_factory=dict)
    """Variables for every sandbox of it; nothing secret."""
    warm: Count = 0
    """How many sandboxes of it are kept started, for tasks to take."""


class Catalogue(BaseModel):
    """What can be asked for here."""

    runtimes: list[RuntimeView]
    profiles: dict[SafeName, Profile] = Field(default_factory=dict)
    harnesses: list[str]
    caps: Limits
    """The most that a sandbox may be given."""
    defaults: Limits
    max_attempts: Attempt
    """The most attempts that a task may be given."""
    max_ttl_seconds: Count
    max_file_bytes: Count


class ListRuntimes(Request[Catalogue]):
    """What can be asked for here?"""

    Answer: ClassVar[type[BaseModel]] = Catalogue
    type: ClassVar[str] = "spawner.list_runtimes"


class Orphan(BaseModel):
    """Something that a runtime has and no record wants."""

    sandbox: str
    runtime: SafeName
    removed: bool
    """Whether it was removed; else its grace time is not over, or it is only looked at."""


class Pruned(BaseModel):
    """What a look at everything has found."""

    present: Count
    """Sandboxes that the runtimes have."""
    records: Count
    """Sandboxes that live by the records."""
    orphans: list[Orphan] = Field(default_factory=list)
    lost: list[SafeName] = Field(default_factory=list)
    """Sandboxes that a record wants and no runtime has; their attempts fail."""


class Prune(Request[Pruned]):
    """Compare all records with what is really there, now."""

    Answer: ClassVar[type[BaseModel]] = Pruned
    type: ClassVar[str] = "spawner.prune"
    now: bool = False
    """Remove orphans without waiting for their grace time."""
