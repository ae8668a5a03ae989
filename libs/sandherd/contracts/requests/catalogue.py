"""The catalogue of a herd: runtimes, profiles, harnesses, caps; and the comparison of records with sandboxes."""

from collections.abc import Collection
from pathlib import PurePosixPath
from typing import Annotated, ClassVar, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from sandherd.contracts.budgets import BudgetLimits
from sandherd.contracts.constraints import Constraints
from sandherd.contracts.model import Attempt, Count, Model
from sandherd.contracts.names import EnvName, SafeName
from sandherd.contracts.network import SandboxNetwork
from sandherd.contracts.requests.base import Request
from sandherd.contracts.specs import SandboxLimits
from sandherd.contracts.states import SteeringStep

_RESERVED_PATHS: Final = ("/sandherd", "/opt/sandherd", "/proc", "/sys", "/dev")


def _reject_parent(path: str) -> str:
    if ".." in PurePosixPath(path).parts:
        raise ValueError("a path may not contain '..'")
    return path


def _reject_reserved(path: str) -> str:
    """Return a path in a sandbox if it is not reserved. Raises `ValueError`."""
    target = PurePosixPath(path)
    if str(target) in {"/", "//"} or any(target.is_relative_to(reserved) for reserved in _RESERVED_PATHS):
        raise ValueError(f"nothing can be mounted there; / and all below {', '.join(_RESERVED_PATHS)} are reserved")
    return path


MountSource = Annotated[
    str, StringConstraints(pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,127}|/[^\x00:,]+)$"), AfterValidator(_reject_parent)
]
"""The name of a volume, or the absolute path of a folder of the host."""


class Mount(Model):
    """A folder of the host, or a volume of an engine, that is mounted in a sandbox."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: MountSource
    target: Annotated[
        str,
        StringConstraints(pattern=r"^/[^\x00:]+$"),
        AfterValidator(_reject_parent),
        AfterValidator(_reject_reserved),
    ]
    """The folder in the sandbox."""
    read_only: bool = True

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of the host rather than a volume."""
        return self.source.startswith("/")

    def is_within(self, allowed: Collection[str]) -> bool:
        """Whether the source is one of the allowed ones, or a folder below one of them."""
        if not self.is_folder:
            return self.source in allowed
        return any(PurePosixPath(self.source).is_relative_to(folder) for folder in allowed if folder.startswith("/"))


class RuntimeView(Model):
    """A runtime, and its capabilities on this host."""

    runtime: SafeName
    default: bool = False
    isolation: str | None = None
    can_pause: bool = False
    memory: str = ""
    """What enforces the memory limit."""
    processes: str = ""
    """What enforces the limit of processes."""
    cores: str = ""
    """What enforces the limit of cores."""
    disk: str = Field(default="", exclude_if=lambda disk: not disk)
    """What limits how much a sandbox writes to disk: `file system`, or `none`; empty if unknown."""
    ports: bool = False
    """Whether a server in a sandbox can be reached from outside."""
    limit: Count | None = None
    """Maximum number of sandboxes in it at one time; None: only the limit for all runtimes applies."""
    gaps: list[str] = Field(default_factory=list, exclude_if=lambda gaps: not gaps)
    """What its sandboxes are not protected from on this host, each with a remedy."""
    network: str = Field(default="", exclude_if=lambda mode: not mode)
    """The network mode of its sandboxes, unless their profile sets another one: `internet`, `allow`, `none` or `host`;
    empty if the provider of the sandboxes decides."""
    host_uid: str = Field(default="", exclude_if=lambda uid: not uid)
    """The uid on the host that its sandboxes run under: `own` (each sandbox has a uid that nothing else uses),
    `subordinate` (each sandbox has one of the subordinate uids of the spawner's user), `spawner`, or `root`; empty if
    unknown."""
    worker_start: str = Field(default="", exclude_if=lambda how: not how)
    """How its workers are started: `fork` (of a process that has loaded their modules) or `exec`; empty if unknown."""
    plugin: str = Field(default="", exclude_if=lambda origin: not origin)
    """The distribution and version of a runtime that is a plugin, such as `acme-boxes 1.2`; empty for Sandherd's own.
    """


class Profile(Model):
    """A named configuration of sandboxes, from the herd's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    runtime: SafeName | None = None
    """The runtime of the sandboxes; None: the herd's default."""
    limits: SandboxLimits | None = None
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of every sandbox with this profile; nothing secret."""
    forward_env: frozenset[EnvName] = Field(default=frozenset(), exclude_if=lambda names: not names)
    """Names of the spawner's own environment variables that every sandbox with this profile gets, as secrets."""
    mounts: tuple[Mount, ...] = Field(default=(), exclude_if=lambda mounts: not mounts)
    """Mounts of every sandbox with this profile; the herd's settings define what may be mounted."""
    user_namespaces: bool = Field(default=False, exclude_if=lambda allowed: not allowed)
    """Whether programs in the process runtime may create user namespaces and mount in them, as Chromium's own sandbox
    and rootless Podman do. That exposes the kernel's namespace, mount and file system code to these programs."""
    network: SandboxNetwork | None = Field(default=None, exclude_if=lambda network: network is None)
    """The network of its sandboxes in the process runtime; None: as in the herd's settings."""
    budget: BudgetLimits | None = Field(default=None, exclude_if=lambda budget: budget is None)
    """What each task with this profile may use, unless its spec has a budget."""
    max_intervention: SteeringStep | None = Field(default=None, exclude_if=lambda value: value is None)
    """The strongest step of the monitor's guardian rules for tasks with this profile; None: as in the project."""
    constraints: Constraints | None = Field(default=None, exclude_if=lambda value: value is None)
    """What agents with this profile must not do, in addition to the herd's constraints."""
    warm: Count = 0
    """Number of sandboxes with this profile that are started in advance, for tasks to use."""


class Catalogue(Model):
    """The catalogue of this herd for tasks and sandboxes: runtimes, profiles, harnesses, limits."""

    runtimes: list[RuntimeView]
    profiles: dict[SafeName, Profile] = Field(default_factory=dict)
    harnesses: list[str]
    caps: SandboxLimits
    """The maximum of each limit that a task, a sandbox or a profile may set."""
    defaults: SandboxLimits
    max_attempts: Attempt
    """Maximum number of attempts of a task."""
    max_ttl_seconds: Count
    max_file_bytes: Count
    secrets_key: str | None = Field(default=None, exclude_if=lambda key: key is None)
    """The public key to encrypt the values of secrets with (X25519, base64), for `sealed` of a spec."""


class ListRuntimes(Request[Catalogue]):
    """Return the catalogue of this herd."""

    Answer: ClassVar[type[BaseModel]] = Catalogue
    type: ClassVar[str] = "spawner.list_runtimes"


class Orphan(Model):
    """A sandbox that a runtime has and that no record names."""

    sandbox: str
    runtime: SafeName
    removed: bool
    """Whether it was removed. If not, its grace time has not passed, or the request was only a check."""


class PruneResult(Model):
    """The result of comparing the records with the runtimes' sandboxes."""

    present: Count
    """Number of sandboxes that the runtimes have."""
    records: Count
    """Number of sandboxes that are live according to the records."""
    orphans: list[Orphan] = Field(default_factory=list)
    lost: list[SafeName] = Field(default_factory=list)
    """Sandboxes that a record names and that no runtime has; their attempts fail."""


class Prune(Request[PruneResult]):
    """Compare all records with the runtimes' sandboxes, immediately."""

    Answer: ClassVar[type[BaseModel]] = PruneResult
    type: ClassVar[str] = "spawner.prune"
    now: bool = False
    """Whether to remove orphans without waiting for their grace time."""
