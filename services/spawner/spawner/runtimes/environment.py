"""The environment variables of a worker: names and paths, never secrets."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spawner.runtimes.bubblewrap import INSIDE
from spawner.runtimes.contract import SandboxPlan
from spawner.runtimes.layout import SandboxDirectory

MARK: Final = "SANDHERD_PLACE"
"""The variable that marks every process of a sandbox, to find processes that left its session. Its value is the
sandbox's directory, because names are unique only within a herd, and a host may have several herds."""
_SIGNALLED: Final = 128
"""A shell's exit status after signal n is 128 + n."""

TLS_FILES: Final = {"NATS_CA": "nats-ca.pem", "NATS_CERT": "nats-cert.pem", "NATS_KEY": "nats-key.pem"}
"""The TLS files in a sandbox's state directory, with which its worker connects to the broker, by their variables."""


@dataclass(frozen=True)
class Paths:
    """The sandbox's directories, as the worker sees them."""

    work: Path
    state: Path
    home: Path
    previous: Path
    group: Path | None
    """The path of its control group; None: the path on the host."""
    place: Path
    search: str


def paths(place: SandboxDirectory, *, inside: bool) -> Paths:
    """The directories as seen from inside bubblewrap, or on the host."""
    if not inside:
        search = os.environ.get("PATH", os.defpath)
        return Paths(place.work, place.state, place.home, place.previous, None, place.folder, search)
    search = f"/usr/local/bin:/usr/bin:/bin:{Path(sys.executable).parent}"
    work, state, home, previous = (INSIDE / name for name in ("work", "state", "home", "previous"))
    return Paths(work, state, home, previous, INSIDE / "cgroup", INSIDE, search)


def common(seen: Paths, group: Path | None) -> dict[str, str]:
    """The variables that do not depend on the sandbox's plan. A worker that is started in advance has no others."""
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


def memory_loss(known: bool) -> dict[str, str]:  # noqa: FBT001  # its only argument
    """For a recovery, if `known`: the variable which states that the kernel killed the worker for lack of memory."""
    return {"SANDHERD_LOST_FOR_MEMORY": "1"} if known else {}


def granted(plan: SandboxPlan) -> dict[str, str]:
    """For a warm worker: the variable with the credential for its key, if one has been issued."""
    return {} if plan.grant is None else {"SANDHERD_GRANT": plan.grant.model_dump_json()}


def variables(plan: SandboxPlan, seen: Paths, *, group: Path | None, lost: int | None = None) -> dict[str, str]:
    """The complete environment of the worker; nothing is inherited from the spawner.

    `lost`: in a recovery, the exit status of the lost worker.
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
    found |= {name: str(seen.state / TLS_FILES[name]) for name in plan.tls}
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
