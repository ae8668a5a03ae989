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
    previous: Path
    group: Path | None
    """Where its control group can be read; None means: where it is on the host."""
    place: Path
    search: str


def paths(place: Place, *, inside: bool) -> Paths:
    """Seen from inside bubblewrap, or as they are on the host."""
    if not inside:
        search = os.environ.get("PATH", os.defpath)
        return Paths(place.work, place.state, place.home, place.previous, None, place.folder, search)
    search = f"/usr/local/bin:/usr/bin:/bin:{Path(sys.executable).parent}"
    work, state, home, previous = (INSIDE / name for name in ("work", "state", "home", "previous"))
    return Paths(work, state, home, previous, INSIDE / "cgroup", INSIDE, search)


def common(seen: Paths, group: Path | None) -> dict[str, str]:
    """What is the same for every sandbox of a place: what a worker finds that is started beforehand."""
    found = {
        MARK: str(seen.place),
        "SANDHERD_STATE_DIR": str(seen.state),
        "SANDHERD_WORK_DIR": str(seen.work),
        "HOME": str(seen.home),
        "PATH": seen.search,
        "LANG": "C.UTF-8",
        "USER": "agent",
    }
    if group:
        found["SANDHERD_CGROUP"] = str(seen.group or group)
    return found


def variables(plan: SandboxPlan, seen: Paths, *, group: Path | None, lost: int | None = None) -> dict[str, str]:
    """The whole environment of the worker; nothing of the spawner's own goes along.

    `lost` is the exit status of the worker that is made up for, in a recovery.
    """
    found = common(seen, group) | {
        "SANDHERD_PROJECT": plan.project,
        "SANDHERD_SANDBOX_ID": plan.sandbox,
        "SANDHERD_ATTEMPT": str(plan.attempt),
        "SANDHERD_FENCE": str(plan.fence),
        "SANDHERD_CREDENTIALS": str(seen.state / "joiner.creds"),
        "SANDHERD_TASK_FILE": str(seen.state / "task.json"),
        "SANDHERD_MAX_WORK_BYTES": str(plan.max_work_bytes),
        "NATS_URL": plan.nats_url,
        "HEARTBEAT_INTERVAL": f"{plan.heartbeat_interval:g}",
        "SANDHERD_STOP_GRACE": f"{plan.stop_grace:g}",
    }
    if plan.task:
        found["SANDHERD_TASK_ID"] = plan.task
    if plan.previous:
        found["SANDHERD_PREVIOUS_FILE"] = str(seen.state / "previous.json")
        found["SANDHERD_PREVIOUS_DIR"] = str(seen.previous)
    if plan.traceparent:
        found["TRACEPARENT"] = plan.traceparent
    if lost and lost > _SIGNALLED:
        found["SANDHERD_LOST_SIGNAL"] = str(lost - _SIGNALLED)
    return found
