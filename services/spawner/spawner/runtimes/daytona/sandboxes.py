"""Creation parameters for Daytona's sandboxes, and boxes read from its replies. Pure."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from daytona import CreateSandboxFromImageParams, CreateSandboxFromSnapshotParams, Resources, VolumeMount

from sandherd.settings import Settings
from spawner.runtimes.boxes.box_files import HERD
from spawner.runtimes.boxes.provider import Box, BoxSpec, BoxState, ProgramEnd, ProviderError, ProviderFault
from spawner.runtimes.daytona.scripts import DaytonaProgramState

_LABEL_PREFIX: Final = HERD.partition("/")[0]
UNIT: Final = f"{_LABEL_PREFIX}/unit"
"""The label with the sandbox's name. An interrupted creation is found by the label or by the name."""
MARK: Final = {f"{_LABEL_PREFIX}/box": "true"}
"""The label of every sandbox that any herd has created."""
RUNS: Final = f"{_LABEL_PREFIX}/runs"
"""The label with the number of starts of the program. It is missing if the program was never started."""
END: Final = f"{_LABEL_PREFIX}/end"
"""The label with the end of the program (see `format_end`). It is set when the sandbox is stopped, because a stopped
sandbox has no toolbox that could report it."""
QUARANTINED: Final = f"{_LABEL_PREFIX}/kept"
"""The label of a sandbox in quarantine."""
_MIB_PER_GIB: Final = 1024


class DaytonaState(StrEnum):
    """The relevant states of a sandbox at Daytona. The SDK has two enumerations of them."""

    STARTED = "started"
    PAUSED = "paused"
    PAUSING = "pausing"
    STOPPED = "stopped"
    STOPPING = "stopping"
    ARCHIVED = "archived"
    ARCHIVING = "archiving"
    ERROR = "error"
    BUILD_FAILED = "build_failed"
    DESTROYING = "destroying"
    DESTROYED = "destroyed"
    CHANGING = "changing"
    """Any other state: the sandbox is being created, restored or started."""


ENDING: Final = frozenset({DaytonaState.DESTROYING, DaytonaState.DESTROYED})
FAILED: Final = frozenset({DaytonaState.ERROR, DaytonaState.BUILD_FAILED})
RESTING: Final = frozenset({DaytonaState.STOPPED, DaytonaState.ARCHIVED})
"""The states of a sandbox that does not run, and that can be started again."""
_STATES: Final = {
    DaytonaState.STARTED: BoxState.RUNNING,
    DaytonaState.PAUSED: BoxState.PAUSED,
    DaytonaState.PAUSING: BoxState.PAUSED,
    DaytonaState.STOPPED: BoxState.STOPPED,
    DaytonaState.STOPPING: BoxState.STOPPED,
    DaytonaState.ARCHIVED: BoxState.STOPPED,
    DaytonaState.ARCHIVING: BoxState.STOPPED,
    DaytonaState.ERROR: BoxState.FAILED,
    DaytonaState.BUILD_FAILED: BoxState.FAILED,
    DaytonaState.DESTROYING: BoxState.REMOVING,
    DaytonaState.DESTROYED: BoxState.REMOVING,
}


@dataclass(frozen=True, kw_only=True)
class DaytonaOptions:
    """Options for the sandboxes of an account. `auto_*` intervals are in minutes, other times in seconds."""

    snapshot: str | None = None
    image: str | None = None
    user: str | None = None
    cpu: int | None = None
    disk_gb: int | None = None
    auto_stop: int = 0
    auto_archive: int | None = None
    auto_delete: int | None = None
    ephemeral: bool = False
    block_network: bool = False
    allowed_networks: Collection[str] = ()
    volumes: Collection[str] = ()
    patience: float = 120.0
    """The timeout of one change of a sandbox's state, in seconds."""
    poll_interval: float = 5.0
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Secrets that no message may contain."""

    @classmethod
    def of(cls, settings: Settings) -> "DaytonaOptions":
        """The options from the settings."""
        return cls(
            snapshot=settings.daytona_snapshot,
            image=settings.sandbox_image,
            user=settings.daytona_user,
            cpu=settings.daytona_cpu,
            disk_gb=settings.daytona_disk_gb,
            auto_stop=settings.daytona_auto_stop,
            auto_archive=settings.daytona_auto_archive,
            auto_delete=settings.daytona_auto_delete,
            ephemeral=settings.daytona_ephemeral,
            block_network=settings.daytona_block_network,
            allowed_networks=settings.daytona_allowed_networks,
            volumes=settings.daytona_volumes,
            patience=settings.daytona_patience,
            poll_interval=settings.daytona_look_interval,
            secrets=tuple(secret for secret in (settings.daytona_api_key, settings.daytona_jwt_token) if secret),
        )


def from_snapshot(spec: BoxSpec, options: DaytonaOptions, snapshot: str) -> CreateSandboxFromSnapshotParams:
    """The parameters to create a sandbox from a snapshot, which defines its resources. Raises `ProviderError`."""
    if spec.limits.cores is not None:
        message = f"daytona: the snapshot {snapshot} defines its own cores: request none, or use an image"
        raise ProviderError(ProviderFault.REFUSED, message)
    return CreateSandboxFromSnapshotParams(snapshot=snapshot, **_common_parameters(spec, options))


def from_image(spec: BoxSpec, options: DaytonaOptions, image: str) -> CreateSandboxFromImageParams:
    """The parameters to create a sandbox from an image, which Daytona builds."""
    memory = max(1, math.ceil(spec.limits.memory_mb / _MIB_PER_GIB))
    cores = options.cpu if spec.limits.cores is None else math.ceil(spec.limits.cores)
    resources = Resources(cpu=cores, memory=memory, disk=options.disk_gb)
    return CreateSandboxFromImageParams(image=image, resources=resources, **_common_parameters(spec, options))


def _common_parameters(spec: BoxSpec, options: DaytonaOptions) -> dict[str, Any]:
    return {
        "name": spec.name,
        "os_user": options.user,
        "env_vars": dict(spec.environment),
        "labels": {**spec.labels, **MARK, UNIT: spec.name},
        "auto_stop_interval": options.auto_stop,
        "auto_archive_interval": options.auto_archive,
        "auto_delete_interval": options.auto_delete if options.auto_delete or options.ephemeral else -1,
        "network_block_all": options.block_network or None,
        "network_allow_list": ",".join(sorted(options.allowed_networks)) or None,
        "volumes": [_volume(text) for text in sorted(options.volumes)] or None,
    } | ({"auto_delete_interval": 0} if options.ephemeral else {})


def _volume(text: str) -> VolumeMount:
    name, path, subpath, *_ = [*text.split(":"), None]
    return VolumeMount(volume_id=str(name), mount_path=str(path), subpath=subpath)


def box(sandbox: Any, program: DaytonaProgramState | None, problem: str = "") -> Box:
    """Convert a sandbox of Daytona to a box. `program`: the state that its toolbox reports; None: it reports none."""
    labels: Mapping[str, str] = sandbox.labels
    state = _STATES.get(state_of(sandbox), BoxState.CREATING)
    runs = program.runs if program else int(labels.get(RUNS, "0"))
    end = program.end if program else None
    if end is None and runs and state in {BoxState.STOPPED, BoxState.FAILED}:
        end = parse_end(labels.get(END, ""), sandbox.error_reason)
    return Box(
        name=sandbox.name,
        id=sandbox.id,
        labels={key: value for key, value in labels.items() if key.partition("/")[0] == _LABEL_PREFIX},
        state=state,
        created_at=parse_time(sandbox.created_at),
        runs=runs,
        end=end,
        problem=problem or sandbox.error_reason or "",
        quarantined=QUARANTINED in labels,
    )


def state_of(sandbox: Any) -> DaytonaState:
    """The state of a sandbox, as last read by the SDK."""
    value = getattr(sandbox.state, "value", "")
    return DaytonaState(value) if value in _KNOWN_STATES else DaytonaState.CHANGING


_KNOWN_STATES: Final = frozenset(DaytonaState)


def parse_end(text: str, reason: str | None = None) -> ProgramEnd:
    """Parse the label of a program's end. It is missing if the sandbox was not stopped by this provider."""
    code, _, rest = text.partition(".")
    if not text:
        return ProgramEnd(None, reason=reason or "the sandbox was stopped at Daytona")
    return ProgramEnd(int(code) if code.isdigit() else None, out_of_memory=rest == "oom")


def format_end(end: ProgramEnd | None) -> str:
    """The label of a program's end."""
    if end is None:
        return "unknown"
    return f"{'unknown' if end.code is None else end.code}{'.oom' if end.out_of_memory else ''}"


def parse_time(text: str | None) -> datetime:
    """Parse a timestamp of Daytona; the epoch if it is missing."""
    return datetime.fromisoformat(text) if text else datetime.fromtimestamp(0, UTC)
