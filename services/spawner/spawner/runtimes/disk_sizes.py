"""The default size of a sandbox's file system."""

import os
from pathlib import Path
from typing import Final

DEFAULT_MEGABYTES: Final = 16_384
_MIN_MEGABYTES: Final = 256
"""A smaller file system is of no use to an agent."""
_DEFAULT_DIVISOR: Final = 4
"""The default size is at most the size of the host's file system divided by this number."""
_MOUNT_INFO: Final = Path("/proc/self/mountinfo")
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
_MIB: Final = 1024 * 1024


def megabytes_for(setting: int | None, folder: Path) -> int:
    """The size of a sandbox's file system in MiB: the setting, or a default; 0: sandboxes have no own file system.

    The default depends on the file system of `folder`. It is 0 if this process does not run as root, because only root
    can mount a file system.
    """
    if setting is not None or os.getuid() != 0:
        return setting or 0
    status = os.statvfs(folder)
    return default_megabytes(status.f_blocks * status.f_frsize, _file_system_type(folder))


def default_megabytes(total: int, kind: str) -> int:
    """The default size on a file system of type `kind` with `total` bytes: at most a quarter of it.

    So no sandbox fills it alone. The size is 0 if a quarter is too small to be of use. It is also 0 on a file system in
    memory, where an image would use memory twice.
    """
    megabytes = min(DEFAULT_MEGABYTES, total // _MIB // _DEFAULT_DIVISOR)
    return 0 if kind in _IN_MEMORY or megabytes < _MIN_MEGABYTES else megabytes


def _file_system_type(folder: Path) -> str:
    """The type of the file system that contains a folder (proc_pid_mountinfo(5)); empty if it is not listed."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    rows = (line.split() for line in _MOUNT_INFO.read_text().splitlines())
    return next((row[row.index("-") + 1] for row in rows if row[2] == number), "")
