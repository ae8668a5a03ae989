"""What a box is given: where its worker finds everything, its variables, its files, its labels. All pure."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from spawner.runtimes.boxes.bundle import WORKER
from spawner.runtimes.boxes.provider import BoxSpec, File, ProgramEnd
from spawner.runtimes.contract import SandboxPlan
from spawner.runtimes.environment import Paths, variables

ROOT: Final = "/sandherd"
"""All that is one box's own lies below it."""
STATE: Final = f"{ROOT}/state"
PROGRAM: Final = (f"{WORKER}/bin/sandherd-box",)
"""The supervisor: it runs the worker, recovers what one has left that was lost, and ends with its status."""
SANDBOX: Final = "sandherd.dev/sandbox"
PROJECT: Final = "sandherd.dev/project"
HERD: Final = "sandherd.dev/herd"
_SEARCH: Final = "/usr/local/bin:/usr/bin:/bin"
"""Where the image says nothing else."""
EVERYWHERE: Final = "0.0.0.0"  # noqa: S104  # a box has a network of its own, and is reached from outside of it
"""Where a server in a box listens."""
PORTS: Final = "SANDHERD_PORTS"
"""The variable that names the only ports at which such a server is reached."""
FOLDERS: Final = ("state", "work", "home", "previous")


def paths() -> Paths:
    """The sandbox's directories in a box."""
    root = Path(ROOT)
    work, state, home, previous = (root / name for name in ("work", "state", "home", "previous"))
    return Paths(work, state, home, previous, None, root, _SEARCH)


def labels(plan: SandboxPlan, herd: str) -> dict[str, str]:
    """By what it is found again, by us alone: the herd is this spawner's own."""
    return {HERD: herd, SANDBOX: plan.sandbox, PROJECT: plan.project}


def listed(ports: Sequence[int]) -> dict[str, str]:
    """The variable that tells a worker of these ports; nothing, where there are none to tell of."""
    return {PORTS: ",".join(map(str, ports))} if ports else {}


def files(plan: SandboxPlan, *, lost: ProgramEnd | None = None, ports: Sequence[int] = ()) -> list[File]:
    """What the worker reads when it begins. `lost` is how the last one ended, for one that recovers."""
    found = variables(plan, paths(), group=None, lost=lost.code if lost else None) | {"SANDHERD_LISTEN": EVERYWHERE}
    found |= listed(ports)
    if lost and lost.out_of_memory:
        found["SANDHERD_LOST_FOR_MEMORY"] = "1"
    put = {
        "environment.json": json.dumps(found),
        "task.json": plan.spec.to_json(),
        "joiner.creds": plan.joiner,
    }
    if plan.previous:
        put["previous.json"] = plan.previous.model_dump_json()
    return [File(f"{STATE}/{name}", text.encode()) for name, text in put.items()]


def box(plan: SandboxPlan, herd: str, ports: Sequence[int] = ()) -> BoxSpec:
    """The box of a plan."""
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
    )
