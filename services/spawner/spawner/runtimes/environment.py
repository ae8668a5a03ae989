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
"""The variable that marks every process of a sandbox, so that a process that has left the session is found. Its value
is the sandbox's directory, because names are unique only within a herd, and a host may have several herds."""
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
    """The path of the sandbox's control group as the worker sees it; None: the path on the host."""
    root: Path
    """The parent of the directories above."""
    search: str
    """The value of PATH."""


def paths(directory: SandboxDirectory, *, inside: bool) -> Paths:
    """The directories as processes in the sandbox see them (`inside`), or on the host."""
    if not inside:
        search = os.environ.get("PATH", os.defpath)
        return Paths(
            directory.work, directory.state, directory.home, directory.previous, None, directory.folder, search
        )
    search = f"/usr/local/bin:/usr/bin:/bin:{Path(sys.executable).parent}"
    work, state, home, previous = (INSIDE / name for name in ("work", "state", "home", "previous"))
    return Paths(work, state, home, previous, INSIDE / "cgroup", INSIDE, search)


def common_variables(paths: Paths, group: Path | None) -> dict[str, str]:
    """The variables that do not depend on the sandbox's plan. `group`: the path of its control group on the host."""
    values = {
        MARK: str(paths.root),
        "SANDHERD_STATE_DIR": str(paths.state),
        "SANDHERD_WORK_DIR": str(paths.work),
        "HOME": str(paths.home),
        "PATH": paths.search,
        "LANG": "C.UTF-8",
        "USER": "agent",
    }
    if group:
        values["SANDHERD_CGROUP"] = str(paths.group or group)
    return values


def memory_loss_variable(lost_for_memory: bool) -> dict[str, str]:  # noqa: FBT001  # its only argument
    """The variable that states in a recovery that the kernel killed the lost worker for lack of memory, if it did."""
    return {"SANDHERD_LOST_FOR_MEMORY": "1"} if lost_for_memory else {}


def grant_variable(plan: SandboxPlan) -> dict[str, str]:
    """The variable with the credential for the key of a warm worker, if a credential has been issued."""
    return {} if plan.grant is None else {"SANDHERD_GRANT": plan.grant.model_dump_json()}


def variables(plan: SandboxPlan, paths: Paths, *, group: Path | None, lost: int | None = None) -> dict[str, str]:
    """The complete environment of the worker; nothing is inherited from the spawner.

    `group`: the path of the sandbox's control group on the host. `lost`: in a recovery, the exit status of the lost
    worker.
    """
    values = common_variables(paths, group) | {
        "SANDHERD_PROJECT": plan.project,
        "SANDHERD_SANDBOX_ID": plan.sandbox,
        "SANDHERD_ATTEMPT": str(plan.attempt),
        "SANDHERD_FENCE": str(plan.fence),
        "SANDHERD_CREDENTIALS": str(paths.state / "joiner.creds"),
        "SANDHERD_TASK_FILE": str(paths.state / "task.json"),
        "SANDHERD_MAX_WORK_BYTES": str(plan.max_work_bytes),
        "NATS_URL": plan.nats_url,
        "HEARTBEAT_INTERVAL": f"{plan.heartbeat_interval:g}",
        "SANDHERD_STOP_GRACE": f"{plan.stop_grace:g}",
    }
    values |= {name: str(paths.state / TLS_FILES[name]) for name in plan.tls}
    if plan.task:
        values["SANDHERD_TASK_ID"] = plan.task
    if plan.previous:
        values["SANDHERD_PREVIOUS_FILE"] = str(paths.state / "previous.json")
        values["SANDHERD_PREVIOUS_DIR"] = str(paths.previous)
    if plan.traceparent:
        values["TRACEPARENT"] = plan.traceparent
    if lost and lost > _SIGNALLED:
        values["SANDHERD_LOST_SIGNAL"] = str(lost - _SIGNALLED)
    return values
