"""The checks of runtimes: how well they isolate sandboxes from each other and from their host."""

from collections.abc import Sequence
from typing import Final

from sandherd.client.doctor.check import Check, CheckState
from sandherd.contracts.requests import RuntimeView

_DISK_LIMIT_REMEDY: Final = (
    "run the spawner as root where loop devices can be mounted, without SANDHERD_SANDBOX_DISK_MB=0; "
    "or put its home on a separate file system, so that sandboxes cannot fill any other"
)
_SHARED_UID_REMEDY: Final = (
    "run the spawner as root, with unused host uids, or give its user subordinate uids (/etc/subuid, "
    "/etc/subgid, newuidmap): each sandbox then has its own host uid"
)
_HOST_UID_RESULTS: Final = {
    "own": (CheckState.RIGHT, "each sandbox of runtime {} has a host uid of its own"),
    "subordinate": (CheckState.RIGHT, "each sandbox of runtime {} has a subordinate uid of the spawner's user"),
    "spawner": (CheckState.WARNING, "sandboxes of runtime {} share the host uid of the spawner"),
    "root": (CheckState.WARNING, "sandboxes of runtime {} share the uid of the host's root"),
}


def check_runtimes(runtimes: Sequence[RuntimeView]) -> list[Check]:
    """Every check of the runtimes."""
    return check_host_uids(runtimes) + check_isolation(runtimes) + check_disk_limits(runtimes)


def check_host_uids(runtimes: Sequence[RuntimeView]) -> list[Check]:
    """One check for each runtime that reports the host uids of its sandboxes."""
    return [_check_host_uid(runtime) for runtime in runtimes if runtime.host_uid in _HOST_UID_RESULTS]


def _check_host_uid(runtime: RuntimeView) -> Check:
    state, text = _HOST_UID_RESULTS[runtime.host_uid]
    return Check(
        "sandbox host uid",
        state,
        text.format(runtime.runtime),
        None if state is CheckState.RIGHT else _SHARED_UID_REMEDY,
    )


def check_isolation(runtimes: Sequence[RuntimeView]) -> list[Check]:
    """A warning for each guarantee that a runtime does not give on its host."""
    return [
        Check(f"runtime {runtime.runtime}", CheckState.WARNING, gap, "see the table of guarantees in docs/security.md")
        for runtime in runtimes
        for gap in runtime.gaps
    ]


def check_disk_limits(runtimes: Sequence[RuntimeView]) -> list[Check]:
    """Whether a sandbox can fill the disk of its host. Empty if no runtime reports its disk limits."""
    unlimited = [runtime.runtime for runtime in runtimes if runtime.disk == "none"]
    if unlimited:
        text = f"not limited in runtime {', '.join(unlimited)}"
        return [Check("sandbox disk", CheckState.WARNING, text, _DISK_LIMIT_REMEDY)]
    limited = [f"{runtime.disk} in runtime {runtime.runtime}" for runtime in runtimes if runtime.disk]
    return [Check("sandbox disk", CheckState.RIGHT, f"limited by {', '.join(limited)}")] if limited else []
