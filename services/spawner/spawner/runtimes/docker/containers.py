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
_NEVER: Final = "0001-01-01T00:00:00Z"
_LONGEST: Final = 600
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
PREFIX: Final = "sandherd-"
QUARANTINED_PREFIX: Final = "sandherd-kept-"


@dataclass(frozen=True)
class ContainerOptions:
    """Options for the containers of this engine."""

    image: str
    network: str = "none"
    user: str = "1000:1000"
    read_only: bool = True
    platform: str | None = None


def config(spec: BoxSpec, kind: ContainerOptions, image: str) -> dict[str, Any]:
    """The container configuration of a box, with the fewest privileges a worker needs. `image` contains the worker."""
    return {
        "Image": image,
        "Entrypoint": container_files.gate(ROOT, spec.program),
        "Cmd": [],
        "AttachStdin": True,
        "OpenStdin": True,
        "StdinOnce": True,
        "User": kind.user,
        "WorkingDir": f"{ROOT}/work",
        "Env": [f"{name}={value}" for name, value in spec.environment.items()],
        "Labels": dict(spec.labels),
        "StopTimeout": max(1, round(spec.stop_grace)),
        "Tty": False,
        "HostConfig": _host(spec, kind),
    }


def _host(spec: BoxSpec, kind: ContainerOptions) -> dict[str, Any]:
    memory = spec.limits.memory_mb * _MIB
    return {
        "NetworkMode": kind.network,
        "Memory": memory,
        "MemorySwap": memory,
        "NanoCpus": round((spec.limits.cores or 0) * _NANO),
        "PidsLimit": spec.limits.processes,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "ReadonlyRootfs": kind.read_only,
        "Tmpfs": {"/tmp": "rw,exec,nosuid,nodev,mode=1777"} if kind.read_only else {},  # noqa: S108  # the box's own
        "Ulimits": [_ulimit("nofile", spec.limits.open_files), _ulimit("cpu", spec.limits.cpu_seconds)],
        "Mounts": [_own_volume(spec), *map(_mount, spec.mounts), *_repository(spec)],
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}},
    }


def _ulimit(name: str, value: int) -> dict[str, Any]:
    """A limit of each process."""
    return {"Name": name, "Soft": value, "Hard": value}


def _own_volume(spec: BoxSpec) -> dict[str, Any]:
    """The volume with the box's files. Its name and labels identify it if a crash of the engine left only this."""
    options = {"Labels": dict(spec.labels)}
    return {"Type": "volume", "Source": PREFIX + spec.name, "Target": ROOT, "VolumeOptions": options}


def _mount(one: Mount) -> dict[str, Any]:
    kind = "bind" if one.is_folder else "volume"
    return {"Type": kind, "Source": one.source, "Target": one.target, "ReadOnly": one.read_only}


def _repository(spec: BoxSpec) -> list[dict[str, Any]]:
    if spec.repository is None:
        return []
    return [{"Type": "bind", "Source": str(spec.repository), "Target": MOUNTED, "ReadOnly": True}]


def box(shown: Mapping[str, Any]) -> Box:
    """Convert the reply of `GET /containers/<id>/json` to a box."""
    state, labels = shown["State"], shown["Config"]["Labels"] or {}
    name = str(shown["Name"]).lstrip("/")
    runs = shown.get("RestartCount", 0) + (state["StartedAt"] != _NEVER)
    standing = _STATES.get(state["Status"], BoxState.FAILED)
    return Box(
        name=name.removeprefix(QUARANTINED_PREFIX).removeprefix(PREFIX),
        id=shown["Id"],
        labels={key: value for key, value in labels.items() if HERD.partition("/")[0] in key},
        state=standing,
        created_at=moment(shown["Created"]),
        runs=runs,
        end=_end(state) if standing in {BoxState.STOPPED, BoxState.FAILED} and runs else None,
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


def last_output(printed: Sequence[str]) -> str:
    """The last output of a program as one line for users: limited in length, without control characters."""
    text = " / ".join(line for line in "".join(printed).splitlines() if line.strip())
    return _CONTROL.sub("?", text)[-_LONGEST:]


def moment(text: str) -> datetime:
    """Parse a timestamp of the engine: nanoseconds, UTC."""
    whole, _, rest = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}.{(rest + '000000')[:6]}").replace(tzinfo=UTC)


def host_of(shown: Mapping[str, Any]) -> str | None:
    """The host name of a container: its own address, or the loopback address on the host network; None: no network."""
    networks = (shown.get("NetworkSettings") or {}).get("Networks") or {}
    if "host" in networks:
        return "127.0.0.1"
    return next((str(found["IPAddress"]) for found in networks.values() if found.get("IPAddress")), None)
