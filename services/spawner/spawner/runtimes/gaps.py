"""What the isolation of the process runtime lacks on this host, in words for `sandherd runtimes` and `doctor`."""

import ctypes
import os
from typing import Final

from spawner.runtimes.isolation import Walls

NOTHING: Final = "sandboxes are processes of this host without any isolation"
_LANDLOCK_CREATE: Final = 444
_VERSION_FLAG: Final = 1
_SCOPES: Final = 6
"""The first Landlock ABI that keeps signals in (Linux 6.12)."""

_SHARED: Final = {
    "root": "sandboxes run under the host's root in a user namespace, separated by namespaces, seccomp and Landlock "
    "alone: a fault in one of these exposes the whole host, and they can change modes of its device nodes",
    "spawner": "sandboxes run under the spawner's own uid, separated by namespaces, seccomp and Landlock alone: a "
    "fault in one of these exposes that user's files and processes, the spawner's and other sandboxes' among them, and "
    "what the kernel limits for each uid, as inotify instances, is shared with that user; subordinate uids "
    "(/etc/subuid) are not used: {reason}",
    "subordinate": "what the kernel limits for each user, as inotify instances, sandboxes share with one another and "
    "with the spawner's user, and one can use it up for all: a spawner that is root prevents that",
}
"""What follows from a host uid that is not a sandbox's own, or is subordinate to another user."""


def host_uid(walls: Walls | None) -> str:
    """Under whose uid of this host sandboxes run.

    `own` (each has one), `subordinate` (each has one of those of the spawner's user), `spawner`, or `root`.
    """
    if walls and walls.users:
        return "subordinate" if walls.subordinate else "own"
    return "root" if os.getuid() == 0 else "spawner"


def of(walls: Walls, reason: str) -> tuple[str, ...]:
    """What is missing although sandboxes are isolated. `reason`: why no subordinate uids are used."""
    found = [_SHARED[shared].format(reason=reason)] if (shared := host_uid(walls)) in _SHARED else []
    if landlock_version() < _SCOPES:
        found.append("an agent can end its own worker: Linux 6.12 with Landlock prevents that")
    return tuple(found)


def landlock_version() -> int:
    """The Landlock ABI of this kernel; less than 1: it has none."""
    return int(ctypes.CDLL(None, use_errno=True).syscall(_LANDLOCK_CREATE, None, 0, _VERSION_FLAG))
