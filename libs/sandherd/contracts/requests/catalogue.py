"""What can be asked for here: runtimes, profiles, harnesses, caps; and a look at what is really there."""

from collections.abc import Collection
from pathlib import PurePosixPath
from typing import Annotated, ClassVar, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from sandherd.contracts.harnesses import EnvName
from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.network import SandboxNetwork
from sandherd.contracts.quantities import Attempt, Count
from sandherd.contracts.requests.base import Request
from sandherd.contracts.specs import Limits

_KEPT_FREE: Final = ("/sandherd", "/opt/sandherd", "/proc", "/sys", "/dev")


def _straight(path: str) -> str:
    if ".." in PurePosixPath(path).parts:
        raise ValueError("a path may not go back by '..'")
    return path


def _free(path: str) -> str:
    """A place in a sandbox that is nobody's yet."""
    place = PurePosixPath(path)
    if str(place) in {"/", "//"} or any(place.is_relative_to(kept) for kept in _KEPT_FREE):
        raise ValueError(f"nothing can be mounted there; keep clear of / and of {', '.join(_KEPT_FREE)}")
    return path


MountSource = Annotated[
    str, StringConstraints(pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,127}|/[^\x00:,]+)$"), AfterValidator(_straight)
]
"""The name of a volume, or a folder of the host, from its root on."""


class Mount(Model):
    """Something of the host's, or of an engine's, that a sandbox finds in a folder of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: MountSource
    target: Annotated[str, StringConstraints(pattern=r"^/[^\x00:]+$"), AfterValidator(_straight), AfterValidator(_free)]
    """The folder in the sandbox."""
    read_only: bool = True

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of the host, and no volume."""
        return self.source.startswith("/")

    def is_within(self, allowed: Collection[str]) -> bool:
        """Whether it is one of these, or lies below one of them."""
        if not self.is_folder:
            return self.source in allowed
        return any(PurePosixPath(self.source).is_relative_to(one) for one in allowed if one.startswith("/"))


class RuntimeView(Model):
    """A runtime, and what it can do here."""

    runtime: SafeName
    default: bool = False
    isolation: str | None = None
    can_pause: bool = False
    memory: str = ""
    """What holds memory in its limit."""
    processes: str = ""
    """What limits the number of processes."""
    cores: str = ""
    """What holds a sandbox to its cores."""
    disk: str = Field(default="", exclude_if=lambda disk: not disk)
    """What limits what a sandbox writes to disk: `file system`, or `none`; empty where that is not known."""
    ports: bool = False
    """Whether a server in a sandbox can be reached from outside."""
    limit: Count | None = None
    """How many sandboxes may live in it at once; None: as many as in all."""
    gaps: list[str] = Field(default_factory=list, exclude_if=lambda gaps: not gaps)
    """What its sandboxes are not protected from on this host, each with what would change that."""
    network: str = Field(default="", exclude_if=lambda mode: not mode)
    """What its sandboxes reach, unless their profile says otherwise: `internet`, `allow`, `none` or `host`; nothing
    where whoever makes them decides."""
    host_uid: str = Field(default="", exclude_if=lambda whose: not whose)
    """Under whose uid of the host its sandboxes run: `own` (each sandbox has one that nobody else has), `subordinate`
    (each has one of the subordinate uids of the spawner's user), `spawner`, or `root`; empty where that is not known.
    """


class Profile(Model):
    """A named kind of sandbox, from the herd's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    runtime: SafeName | None = None
    """None: the herd's default."""
    limits: Limits | None = None
    env: dict[str, str] = Field(default_factory=dict)
    """Variables for every sandbox of it; nothing secret."""
    forward_env: frozenset[EnvName] = Field(default=frozenset(), exclude_if=lambda names: not names)
    """Names of the spawner's own variables that every sandbox of it gets, as secrets."""
    mounts: tuple[Mount, ...] = Field(default=(), exclude_if=lambda mounts: not mounts)
    """What every sandbox of it finds beside its own; the herd's settings say what may be mounted at all."""
    user_namespaces: bool = Field(default=False, exclude_if=lambda allowed: not allowed)
    """Programs in the process runtime may make user namespaces and mount in them, as Chromium's own sandbox and
    rootless Podman do. That opens the kernel's namespace, mount and file system code to them."""
    network: SandboxNetwork | None = Field(default=None, exclude_if=lambda network: network is None)
    """What they reach, in the process runtime; None: as the herd's settings say."""
    warm: Count = 0
    """How many sandboxes of it are kept started, for tasks to take."""


class Catalogue(Model):
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
    secrets_key: str | None = Field(default=None, exclude_if=lambda key: key is None)
    """The key that values of secrets are sealed with (X25519, base64), as `sealed` of a spec."""


class ListRuntimes(Request[Catalogue]):
    """What can be asked for here?"""

    Answer: ClassVar[type[BaseModel]] = Catalogue
    type: ClassVar[str] = "spawner.list_runtimes"


class Orphan(Model):
    """Something that a runtime has and no record wants."""

    sandbox: str
    runtime: SafeName
    removed: bool
    """Whether it was removed; else its grace time is not over, or it is only looked at."""


class Pruned(Model):
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
