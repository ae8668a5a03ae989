"""What Daytona is told of a sandbox, and what it says of one. All pure."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from daytona import CreateSandboxFromImageParams, CreateSandboxFromSnapshotParams, Resources, VolumeMount

from sandherd.settings import Settings
from spawner.runtimes.boxes.furnishing import HERD
from spawner.runtimes.boxes.provider import Box, BoxSpec, BoxState, ProgramEnd, ProviderError, ProviderFault
from spawner.runtimes.daytona.scripts import Life

_OURS: Final = HERD.partition("/")[0]
UNIT: Final = f"{_OURS}/unit"
"""Its name once more: a making that was lost half-way is found by either."""
MARK: Final = {f"{_OURS}/box": "true"}
"""On every sandbox of any herd of ours."""
RUNS: Final = f"{_OURS}/runs"
"""How often its program was started; without it none ever was."""
END: Final = f"{_OURS}/end"
"""How its program ended, as far as it was known when it was stopped: nothing inside can be asked then."""
KEPT: Final = f"{_OURS}/kept"
_GIB: Final = 1024


class State(StrEnum):
    """The states of a sandbox at Daytona that anything depends on. The SDK has two enumerations of them."""

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
    ON_ITS_WAY = "on its way"
    """Any other: it is being made, restored or started."""


ENDING: Final = frozenset({State.DESTROYING, State.DESTROYED})
FAILED: Final = frozenset({State.ERROR, State.BUILD_FAILED})
RESTING: Final = frozenset({State.STOPPED, State.ARCHIVED})
_STATES: Final = {
    State.STARTED: BoxState.RUNNING,
    State.PAUSED: BoxState.PAUSED,
    State.PAUSING: BoxState.PAUSED,
    State.STOPPED: BoxState.STOPPED,
    State.STOPPING: BoxState.STOPPED,
    State.ARCHIVED: BoxState.STOPPED,
    State.ARCHIVING: BoxState.STOPPED,
    State.ERROR: BoxState.FAILED,
    State.BUILD_FAILED: BoxState.FAILED,
    State.DESTROYING: BoxState.REMOVING,
    State.DESTROYED: BoxState.REMOVING,
}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How sandboxes are made at this Daytona. Intervals are in minutes, the rest in seconds."""

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
    """How long one change of a sandbox's state may take."""
    look_interval: float = 5.0
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """What may stand in no text."""

    @classmethod
    def of(cls, settings: Settings) -> "Kind":
        """As the settings have it."""
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
            look_interval=settings.daytona_look_interval,
            secrets=tuple(one for one in (settings.daytona_api_key, settings.daytona_jwt_token) if one),
        )


def from_snapshot(spec: BoxSpec, kind: Kind, snapshot: str) -> CreateSandboxFromSnapshotParams:
    """What is asked for where there is a snapshot; its resources are the snapshot's own. Raises `ProviderError`."""
    if spec.limits.cores is not None:
        told = f"daytona: the cores of the snapshot {snapshot} are its own: ask for none, or for an image"
        raise ProviderError(ProviderFault.REFUSED, told)
    return CreateSandboxFromSnapshotParams(snapshot=snapshot, **_both(spec, kind))


def from_image(spec: BoxSpec, kind: Kind, image: str) -> CreateSandboxFromImageParams:
    """What is asked for where an image has to be built."""
    memory = max(1, math.ceil(spec.limits.memory_mb / _GIB))
    cores = kind.cpu if spec.limits.cores is None else math.ceil(spec.limits.cores)
    resources = Resources(cpu=cores, memory=memory, disk=kind.disk_gb)
    return CreateSandboxFromImageParams(image=image, resources=resources, **_both(spec, kind))


def _both(spec: BoxSpec, kind: Kind) -> dict[str, Any]:
    return {
        "name": spec.name,
        "os_user": kind.user,
        "env_vars": dict(spec.environment),
        "labels": {**spec.labels, **MARK, UNIT: spec.name},
        "auto_stop_interval": kind.auto_stop,
        "auto_archive_interval": kind.auto_archive,
        "auto_delete_interval": kind.auto_delete if kind.auto_delete or kind.ephemeral else -1,
        "network_block_all": kind.block_network or None,
        "network_allow_list": ",".join(sorted(kind.allowed_networks)) or None,
        "volumes": [_volume(text) for text in sorted(kind.volumes)] or None,
    } | ({"auto_delete_interval": 0} if kind.ephemeral else {})


def _volume(text: str) -> VolumeMount:
    name, path, part, *_ = [*text.split(":"), None]
    return VolumeMount(volume_id=str(name), mount_path=str(path), subpath=part)


def box(sandbox: Any, life: Life | None, problem: str = "") -> Box:
    """A sandbox as Daytona shows it. `life` is what was seen inside; None: nothing could be."""
    labels: Mapping[str, str] = sandbox.labels
    state = _STATES.get(state_of(sandbox), BoxState.CREATING)
    runs = life.runs if life else int(labels.get(RUNS, "0"))
    end = life.end if life else None
    if end is None and runs and state in {BoxState.STOPPED, BoxState.FAILED}:
        end = told(labels.get(END, ""), sandbox.error_reason)
    return Box(
        name=sandbox.name,
        id=sandbox.id,
        labels={key: value for key, value in labels.items() if key.partition("/")[0] == _OURS},
        state=state,
        created_at=moment(sandbox.created_at),
        runs=runs,
        end=end,
        problem=problem or sandbox.error_reason or "",
        aside=KEPT in labels,
    )


def state_of(sandbox: Any) -> State:
    """How a sandbox stands, as far as the SDK knows by now."""
    written = getattr(sandbox.state, "value", "")
    return State(written) if written in _WRITTEN else State.ON_ITS_WAY


_WRITTEN: Final = frozenset(State)


def told(text: str, reason: str | None = None) -> ProgramEnd:
    """An end as it stands in a label; that there is none means that whoever stopped the sandbox was not we."""
    code, _, rest = text.partition(".")
    if not text:
        return ProgramEnd(None, reason=reason or "the sandbox was stopped at Daytona")
    return ProgramEnd(int(code) if code.isdigit() else None, out_of_memory=rest == "oom")


def telling(end: ProgramEnd | None) -> str:
    """The same, to be put into a label."""
    if end is None:
        return "unknown"
    return f"{'unknown' if end.code is None else end.code}{'.oom' if end.out_of_memory else ''}"


def moment(text: str | None) -> datetime:
    """A time as Daytona writes it."""
    return datetime.fromisoformat(text) if text else datetime.fromtimestamp(0, UTC)
