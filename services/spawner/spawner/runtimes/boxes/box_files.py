"""The contents of a new box: paths, environment variables, labels, and files as a tar archive. Pure."""

import io
import json
import tarfile
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from sandherd.archives.writer import ROOT_OWNER, Owner, add_directory, add_file
from spawner.runtimes.boxes.provider import BoxSpec, File, ProgramEnd, ProviderError, ProviderFault
from spawner.runtimes.boxes.worker_bundle import WORKER
from spawner.runtimes.contract import SandboxPlan
from spawner.runtimes.environment import TLS_FILES, Paths, memory_loss_variable, variables

ROOT: Final = "/sandherd"
"""The directory that contains all of a box's own files."""
STATE: Final = f"{ROOT}/state"
"""The directory with the worker's files."""
PROGRAM: Final = (f"{WORKER}/bin/sandherd-box",)
"""The supervisor: it runs the worker, recovers what a lost worker left, and exits with the worker's status."""
SANDBOX: Final = "sandherd.dev/sandbox"
PROJECT: Final = "sandherd.dev/project"
HERD: Final = "sandherd.dev/herd"
"""The labels of a box with the names of its sandbox and project, and with the id of its herd."""
_SEARCH_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
"""The search path if the image does not define one."""
_ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104  # a box has its own network and is reached from outside it
"""The address on which a server in a box listens."""
_PORTS_VARIABLE: Final = "SANDHERD_PORTS"
"""The environment variable with the only ports on which a server in a box can be reached."""
FOLDERS: Final = ("state", "work", "home", "previous")
"""The names of a box's own directories below `ROOT`."""


def paths() -> Paths:
    """The sandbox's directories in a box."""
    root = Path(ROOT)
    work, state, home, previous = (root / name for name in ("work", "state", "home", "previous"))
    return Paths(work, state, home, previous, None, root, _SEARCH_PATH)


def labels(plan: SandboxPlan, herd: str) -> dict[str, str]:
    """The labels by which a box is found. They include the herd, because another herd may use the same provider."""
    return {HERD: herd, SANDBOX: plan.sandbox, PROJECT: plan.project}


def ports_variable(ports: Sequence[int]) -> dict[str, str]:
    """The environment variable that passes these ports to the worker; empty without ports."""
    return {_PORTS_VARIABLE: ",".join(map(str, ports))} if ports else {}


def files(plan: SandboxPlan, *, lost: ProgramEnd | None = None, ports: Sequence[int] = ()) -> list[File]:
    """The files that the worker reads at its start. `lost`: how the previous worker ended, for a recovery."""
    environment = variables(plan, paths(), group=None, lost=lost.code if lost else None)
    environment |= {"SANDHERD_LISTEN": _ALL_ADDRESSES} | ports_variable(ports)
    environment |= memory_loss_variable(lost is not None and lost.out_of_memory)
    texts = {
        "environment.json": json.dumps(environment),
        "task.json": plan.spec.to_json(),
        "joiner.creds": plan.joiner,
    }
    texts |= {TLS_FILES[name]: text for name, text in plan.tls.items()}
    if plan.previous:
        texts["previous.json"] = plan.previous.model_dump_json()
    return [File(f"{STATE}/{name}", text.encode()) for name, text in texts.items()]


def box_spec(plan: SandboxPlan, herd: str, ports: Sequence[int] = ()) -> BoxSpec:
    """The specification of the box for a plan."""
    return BoxSpec(
        name=plan.unit,
        labels=labels(plan, herd),
        image=plan.spec.image,
        program=PROGRAM,
        environment={"SANDHERD_STATE_DIR": STATE},
        files=files(plan, ports=ports),
        ports=ports,
        limits=plan.limits,
        stop_grace=plan.stop_grace,
        profile=plan.spec.profile,
        mounts=plan.mounts,
        repository=plan.repository,
    )


def pack(files: Collection[File], folders: Collection[str] = (), owner: Owner = ROOT_OWNER) -> bytes:
    """An archive to unpack in `ROOT`: private `folders`, then files. Raises `ProviderError` for a file elsewhere."""
    target = io.BytesIO()
    with new_archive(target) as archive:
        for folder in folders:
            add_directory(archive, folder, 0o700, owner)
        for file in files:
            add_file(archive, member_name(file.path), file.content, file.mode, owner)
    return target.getvalue()


def new_archive(target: io.BytesIO) -> tarfile.TarFile:
    """A new archive in GNU format, which busybox supports, including long names. It does not support the pax format."""
    return tarfile.open(fileobj=target, mode="w", format=tarfile.GNU_FORMAT)


def member_name(path: str) -> str:
    """A path below `ROOT`, relative to it. Raises `ProviderError` for a path outside `ROOT`, or with `..`."""
    absolute = PurePosixPath(path)
    if not absolute.is_relative_to(ROOT) or ".." in absolute.parts:
        raise ProviderError(ProviderFault.REFUSED, f"{path} is not below {ROOT}, the writable directory of a box")
    return f"./{absolute.relative_to(ROOT)}"
