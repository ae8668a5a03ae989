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
PROGRAM: Final = (f"{WORKER}/bin/sandherd-box",)
"""The supervisor: it runs the worker, recovers what a lost worker left, and exits with the worker's status."""
SANDBOX: Final = "sandherd.dev/sandbox"
PROJECT: Final = "sandherd.dev/project"
HERD: Final = "sandherd.dev/herd"
_SEARCH: Final = "/usr/local/bin:/usr/bin:/bin"
"""The search path if the image does not define one."""
EVERYWHERE: Final = "0.0.0.0"  # noqa: S104  # a box has its own network and is reached from outside it
"""The address on which a server in a box listens."""
PORTS: Final = "SANDHERD_PORTS"
"""The variable that lists the only ports on which such a server can be reached."""
FOLDERS: Final = ("state", "work", "home", "previous")


def paths() -> Paths:
    """The sandbox's directories in a box."""
    root = Path(ROOT)
    work, state, home, previous = (root / name for name in ("work", "state", "home", "previous"))
    return Paths(work, state, home, previous, None, root, _SEARCH)


def labels(plan: SandboxPlan, herd: str) -> dict[str, str]:
    """The labels by which a box is found again, including the herd, so that other herds' boxes are not matched."""
    return {HERD: herd, SANDBOX: plan.sandbox, PROJECT: plan.project}


def listed(ports: Sequence[int]) -> dict[str, str]:
    """The variable that passes these ports to the worker; empty without ports."""
    return {PORTS: ",".join(map(str, ports))} if ports else {}


def files(plan: SandboxPlan, *, lost: ProgramEnd | None = None, ports: Sequence[int] = ()) -> list[File]:
    """The files that the worker reads at its start. `lost`: how the previous worker ended, for a recovery."""
    found = variables(plan, paths(), group=None, lost=lost.code if lost else None) | {"SANDHERD_LISTEN": EVERYWHERE}
    found |= listed(ports)
    found |= memory_loss_variable(lost is not None and lost.out_of_memory)
    put = {
        "environment.json": json.dumps(found),
        "task.json": plan.spec.to_json(),
        "joiner.creds": plan.joiner,
    }
    put |= {TLS_FILES[name]: text for name, text in plan.tls.items()}
    if plan.previous:
        put["previous.json"] = plan.previous.model_dump_json()
    return [File(f"{STATE}/{name}", text.encode()) for name, text in put.items()]


def box(plan: SandboxPlan, herd: str, ports: Sequence[int] = ()) -> BoxSpec:
    """The box specification for a plan."""
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


def packed(files: Collection[File], folders: Collection[str] = (), owner: Owner = ROOT_OWNER) -> bytes:
    """An archive for `ROOT`: private `folders`, then files. Raises `ProviderError` for a file outside `ROOT`."""
    target = io.BytesIO()
    with opened(target) as archive:
        for folder in folders:
            add_directory(archive, folder, 0o700, owner)
        for file in files:
            add_file(archive, member_name(file.path), file.content, file.mode, owner)
    return target.getvalue()


def opened(target: io.BytesIO) -> tarfile.TarFile:
    """An archive to write, in GNU format: busybox supports it, including long names, but not the pax format."""
    return tarfile.open(fileobj=target, mode="w", format=tarfile.GNU_FORMAT)


def member_name(path: str) -> str:
    """A path below `ROOT`, relative to it. Raises `ProviderError` for a path outside `ROOT`, or with `..`."""
    whole = PurePosixPath(path)
    if not whole.is_relative_to(ROOT) or ".." in whole.parts:
        raise ProviderError(ProviderFault.REFUSED, f"{path} is not below {ROOT}, the writable directory of a box")
    return f"./{whole.relative_to(ROOT)}"
