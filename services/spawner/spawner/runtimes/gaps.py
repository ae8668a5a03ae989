"""What the isolation of the process runtime lacks on this host, in words for `sandherd runtimes` and `doctor`."""

import ctypes
import os
from typing import Final

from spawner.runtimes.launching import Walls

NOTHING: Final = "sandboxes are processes of this host without any isolation"
_LANDLOCK_CREATE: Final = 444
_VERSION_FLAG: Final = 1
_SCOPES: Final = 6
"""The first Landlock ABI that keeps signals in (Linux 6.12)."""


def of(walls: Walls) -> tuple[str, ...]:
    """What is missing although sandboxes are isolated."""
    found = []
    if walls.users is None and os.getuid() == 0:
        found.append("sandboxes run under the host's root in a user namespace")
    elif walls.users is None:
        found.append(
            "sandboxes run under the spawner's own uid, separated by namespaces, seccomp and Landlock: "
            "a spawner that is root gives each a host uid of its own"
        )
    if landlock_version() < _SCOPES:
        found.append("an agent can end its own worker: Linux 6.12 with Landlock prevents that")
    return tuple(found)


def landlock_version() -> int:
    """The Landlock ABI of this kernel; less than 1: it has none."""
    return int(ctypes.CDLL(None, use_errno=True).syscall(_LANDLOCK_CREATE, None, 0, _VERSION_FLAG))
