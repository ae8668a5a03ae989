"""Container configurations for the Docker Engine, and boxes read from its replies. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sandherd.contracts.repositories import MOUNTED
from sandherd.contracts.requests import Mount
from spawner.runtimes.boxes.box_files import HERD, ROOT
from spawner.runtimes.boxes.provider import Box, BoxSpec, BoxState, ProgramEnd
from spawner.runtimes.docker import container_files

_MIB: Final = 1024 * 1024
_NANO: Final = 1_000_000_000
_STATES: Final = {
    "created": BoxState.CREATING,
    "running": BoxState.RUNNING,
    "restarting": BoxState.RUNNING,
    "paused": BoxState.PAUSED,
    "exited": BoxState.STOPPED,
    "dead": BoxState.FAILED,
    "removing": BoxState.REMOVING,
}
_NEVER_STARTED: Final = "0001-01-01T00:00:00Z"
_MAX_OUTPUT_LENGTH: Final = 600
_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
PREFIX: Final = "sandherd-"
"""The prefix of the names of containers and volumes."""
QUARANTINED_PREFIX: Final = "sandherd-kept-"
"""The prefix of the name of a container in quarantine."""


@dataclass(frozen=True)
class ContainerOptions:
    """Options for the containers of this engine."""

    image: str
    """The image of boxes for which no image is requested."""
    network: str = "none"
    user: str = "1000:1000"
    read_only: bool = True
    platform: str | None = None


def config(spec: BoxSpec, options: ContainerOptions, image: str) -> dict[str, Any]:
    """The configuration of a box's container, with the fewest privileges a worker needs. `image` has the worker."""
    return {
        "Image": image,
        "Entrypoint": container_files.gate(ROOT, spec.program),
        "Cmd": [],
        "AttachStdin": True,
        "OpenStdin": True,
        "StdinOnce": True,
        "User": options.user,
        "WorkingDir": f"{ROOT}/work",
        "Env": [f"{name}={value}" for name, value in spec.environment.items()],
        "Labels": dict(spec.labels),
        "StopTimeout": max(1, round(spec.stop_grace)),
        "Tty": False,
        "HostConfig": _host(spec, options),
    }


def _host(spec: BoxSpec, options: ContainerOptions) -> dict[str, Any]:
    memory = spec.limits.memory_mb * _MIB
    return {
        "NetworkMode": options.network,
        "Memory": memory,
        "MemorySwap": memory,
        "NanoCpus": round((spec.limits.cores or 0) * _NANO),
        "PidsLimit": spec.limits.processes,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "ReadonlyRootfs": options.read_only,
        "Tmpfs": {"/tmp": "rw,exec,nosuid,nodev,mode=1777"} if options.read_only else {},  # noqa: S108  # the box's own
        "Ulimits": [_ulimit("nofile", spec.limits.open_files), _ulimit("cpu", spec.limits.cpu_seconds)],
        "Mounts": [_own_volume(spec), *map(_mount, spec.mounts), *_repository(spec)],
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}},
    }


def _ulimit(name: str, value: int) -> dict[str, Any]:
    """A limit of each process."""
    return {"Name": name, "Soft": value, "Hard": value}


def _own_volume(spec: BoxSpec) -> dict[str, Any]:
    """The volume with the box's files. Its name and labels identify the box if a crash of the engine left no more."""
    options = {"Labels": dict(spec.labels)}
    return {"Type": "volume", "Source": PREFIX + spec.name, "Target": ROOT, "VolumeOptions": options}


def _mount(mount: Mount) -> dict[str, Any]:
    kind = "bind" if mount.is_folder else "volume"
    return {"Type": kind, "Source": mount.source, "Target": mount.target, "ReadOnly": mount.read_only}


def _repository(spec: BoxSpec) -> list[dict[str, Any]]:
    if spec.repository is None:
        return []
    return [{"Type": "bind", "Source": str(spec.repository), "Target": MOUNTED, "ReadOnly": True}]


def box(container: Mapping[str, Any]) -> Box:
    """Convert the reply of `GET /containers/<id>/json` to a box."""
    state, labels = container["State"], container["Config"]["Labels"] or {}
    name = str(container["Name"]).lstrip("/")
    runs = container.get("RestartCount", 0) + (state["StartedAt"] != _NEVER_STARTED)
    box_state = _STATES.get(state["Status"], BoxState.FAILED)
    return Box(
        name=name.removeprefix(QUARANTINED_PREFIX).removeprefix(PREFIX),
        id=container["Id"],
        labels={key: value for key, value in labels.items() if HERD.partition("/")[0] in key},
        state=box_state,
        created_at=parse_time(container["Created"]),
        runs=runs,
        end=_end(state) if box_state in {BoxState.STOPPED, BoxState.FAILED} and runs else None,
        problem=state.get("Error") or "",
        quarantined=name.startswith(QUARANTINED_PREFIX),
    )


def hollow_box(volume: Mapping[str, Any]) -> Box:
    """A box of which only the volume exists. Its worker is assumed to have started."""
    return Box(
        name=str(volume["Name"]).removeprefix(PREFIX),
        id=volume["Name"],
        labels=volume.get("Labels") or {},
        state=BoxState.FAILED,
        created_at=datetime.fromisoformat(volume["CreatedAt"]),
        runs=1,
        problem="its container no longer exists",
        hollow=True,
    )


def _end(state: Mapping[str, Any]) -> ProgramEnd:
    return ProgramEnd(state["ExitCode"], out_of_memory=bool(state.get("OOMKilled")), reason=state.get("Error") or "")


def last_output(pieces: Sequence[str]) -> str:
    """The last output of a program as one line for users: limited in length, without control characters."""
    text = " / ".join(line for line in "".join(pieces).splitlines() if line.strip())
    return _CONTROL_CHARACTER.sub("?", text)[-_MAX_OUTPUT_LENGTH:]


def parse_time(text: str) -> datetime:
    """Parse a timestamp of the engine, which is in UTC with up to nine decimals."""
    seconds, _, decimals = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{seconds}.{(decimals + '000000')[:6]}").replace(tzinfo=UTC)


def host_of(container: Mapping[str, Any]) -> str | None:
    """The address of a container, or the loopback address if it shares the host's network; None: it has no network."""
    networks = (container.get("NetworkSettings") or {}).get("Networks") or {}
    if "host" in networks:
        return "127.0.0.1"
    return next((str(network["IPAddress"]) for network in networks.values() if network.get("IPAddress")), None)
