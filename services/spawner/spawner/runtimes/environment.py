"""What a worker finds in its environment: names and paths, never anything secret."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spawner.runtimes.bubblewrap import INSIDE
from spawner.runtimes.contract import SandboxPlan
from spawner.runtimes.layout import Place

MARK: Final = "SANDHERD_PLACE"
"""Every process of a sandbox carries it, so that those that ran away are found. Its value is the sandbox's directory:
a name is one sandbox's in one herd, and a host may have several herds."""
_SIGNALLED: Final = 128
"""A shell's exit status after signal n is 128 + n."""


@dataclass(frozen=True)
class Paths:
    """The sandbox's directories, as the worker sees them."""

    work: Path
    state: Path
    home: Path
    group: Path | None
    """Where its control group can be read; None means: where it is on the host."""
    place: Path
    search: str


def paths(place: Place, *, inside: bool) -> Paths:
    """Seen from inside bubblewrap, or as they are on the host."""
    if not inside:
        return Paths(place.work, place.state, place.home, None, place.folder, os.environ.get("PATH", os.defpath))
    search = f"/usr/local/bin:/usr/bin:/bin:{Path(sys.executable).parent}"
    return Paths(INSIDE / "work", INSIDE / "state", INSIDE / "home", INSIDE / "cgroup", INSIDE, search)


def variables(plan: SandboxPlan, seen: Paths, *, group: Path | None, lost: int | None = None) -> dict[str, str]:
    """The whole environment of the worker; nothing of the spawner's own goes along.

    `lost` is the exit status of the worker that is made up for, in a recovery.
    """
    found = {
        "SANDHERD_PROJECT": plan.project,
        "SANDHERD_SANDBOX_ID": plan.sandbox,
        MARK: str(seen.place),
        "SANDHERD_ATTEMPT": str(plan.attempt),
        "SANDHERD_FENCE": str(plan.fence),
        "SANDHERD_CREDENTIALS": str(seen.state / "joiner.creds"),
        "SANDHERD_TASK_FILE": str(seen.state / "task.json"),
        "SANDHERD_STATE_DIR": str(seen.state),
        "SANDHERD_WORK_DIR": str(seen.work),
        "NATS_URL": plan.nats_url,
        "HEARTBEAT_INTERVAL": f"{plan.heartbeat_interval:g}",
        "SANDHERD_STOP_GRACE": f"{plan.stop_grace:g}",
        "HOME": str(seen.home),
        "PATH": seen.search,
        "LANG": "C.UTF-8",
        "USER": "agent",
    }
    if plan.task:
        found["SANDHERD_TASK_ID"] = plan.task
    if plan.traceparent:
        found["TRACEPARENT"] = plan.traceparent
    if lost and lost > _SIGNALLED:
        found["SANDHERD_LOST_SIGNAL"] = str(lost - _SIGNALLED)
    if group:
        found["SANDHERD_CGROUP"] = str(seen.group or group)
    return found
