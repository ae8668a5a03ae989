"""The gaps in the isolation of the process runtime on this host, as texts for `sandherd runtimes` and `doctor`."""

import ctypes
import os
from typing import Final

from spawner.runtimes.isolation import IsolationLaunch

NO_ISOLATION: Final = "sandboxes are processes of this host without any isolation"
_LANDLOCK_CREATE: Final = 444
_VERSION_FLAG: Final = 1
_SIGNAL_SCOPE_VERSION: Final = 6
"""The first Landlock ABI version that can restrict signals (Linux 6.12)."""

_SHARED: Final = {
    "root": "sandboxes run under the host's root in a user namespace, separated by namespaces, seccomp and Landlock "
    "alone: a fault in one of these exposes the whole host, and sandboxes can change the modes of its device nodes",
    "spawner": "sandboxes run under the spawner's own uid, separated by namespaces, seccomp and Landlock alone: a "
    "fault in one of these exposes that user's files and processes, the spawner's and other sandboxes' among them, and "
    "limits of the kernel for each uid, such as inotify instances, are shared with that user; subordinate uids "
    "(/etc/subuid) are not used: {reason}",
    "subordinate": "limits of the kernel for each user, such as inotify instances, are shared by all sandboxes and the "
    "spawner's user, so that one sandbox can use them up for all; run the spawner as root to prevent that",
}
"""The gap for each result of `host_uid` except `own`."""


def host_uid(launch: IsolationLaunch | None) -> str:
    """The kind of host uid that sandboxes run under.

    It is `own` (each sandbox has one), `subordinate` (each sandbox has one of the subordinate uids of the spawner's
    user), `spawner` or `root`.
    """
    if launch and launch.users:
        return "subordinate" if launch.subordinate else "own"
    return "root" if os.getuid() == 0 else "spawner"


def remaining_gaps(launch: IsolationLaunch, reason: str) -> tuple[str, ...]:
    """The gaps that remain although sandboxes are isolated. `reason`: why no subordinate uids are used."""
    gaps = [_SHARED[kind].format(reason=reason)] if (kind := host_uid(launch)) in _SHARED else []
    if landlock_version() < _SIGNAL_SCOPE_VERSION:
        gaps.append("an agent can end its own worker: Linux 6.12 with Landlock prevents that")
    return tuple(gaps)


def landlock_version() -> int:
    """The Landlock ABI version of this kernel; less than 1 if it does not support Landlock."""
    return int(ctypes.CDLL(None, use_errno=True).syscall(_LANDLOCK_CREATE, None, 0, _VERSION_FLAG))
