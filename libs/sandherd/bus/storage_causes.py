"""Exhausted resources: recognised in error texts of nats-server, Postgres and the kernel, or by measuring free space.

The kernel reports a full disk and an exhausted inode table with the same text, so the measured `Space` distinguishes
the two.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

_MIB: Final = 1024 * 1024
MIN_FREE_BYTES: Final = 4 * _MIB
"""A file system with fewer free bytes counts as full: nats-server and Postgres can't start or checkpoint on it."""
MIN_FREE_INODES: Final = 16
"""A file system with fewer free inodes counts as full."""
MIN_FREE_DESCRIPTORS: Final = 8
"""A process that can open fewer further files counts as out of file descriptors."""


class Cause(StrEnum):
    """An exhausted resource."""

    DISK_BYTES = "disk_bytes"
    DISK_INODES = "disk_inodes"
    DESCRIPTORS = "descriptors"
    MEMORY = "memory"
    READ_ONLY = "read_only"


@dataclass(frozen=True, kw_only=True)
class Space:
    """The free space of the file system at `path`. `free_inodes` is None if it has no fixed number of inodes."""

    path: str
    free_bytes: int
    total_bytes: int
    free_inodes: int | None

    @property
    def cause(self) -> Cause | None:
        """`DISK_BYTES` or `DISK_INODES` if the file system is full, else None."""
        if self.free_bytes < min(MIN_FREE_BYTES, self.total_bytes // 10):
            return Cause.DISK_BYTES
        if self.free_inodes is not None and self.free_inodes < MIN_FREE_INODES:
            return Cause.DISK_INODES
        return None


@dataclass(frozen=True, kw_only=True)
class Descriptors:
    """The number of file descriptors that a process has open, and its limit."""

    used: int
    limit: int

    @property
    def exhausted(self) -> bool:
        """Whether the process can open only a few more files."""
        return self.limit - self.used < MIN_FREE_DESCRIPTORS


_PATTERNS: Final = (
    # This is the first row, because Postgres's error for a full /dev/shm (memory) also has the text of a full disk.
    ("shared memory segment", Cause.MEMORY),
    ("no space left on device", Cause.DISK_BYTES),
    ("disk full", Cause.DISK_BYTES),
    ("disk quota exceeded", Cause.DISK_BYTES),
    ("insufficient storage resources", Cause.DISK_BYTES),
    ("too many open files", Cause.DESCRIPTORS),
    ("out of file descriptors", Cause.DESCRIPTORS),
    ("read-only file system", Cause.READ_ONLY),
    ("cannot allocate memory", Cause.MEMORY),
    ("out of memory", Cause.MEMORY),
    ("insufficient memory", Cause.MEMORY),
)


def cause_of(text: str, space: Space | None = None) -> Cause | None:
    """The exhausted resource that this error text names; None if it names none.

    A stream that has reached its own limit ("maximum bytes exceeded") is not an exhausted resource.
    """
    lower = text.lower()
    cause_in_text = next((cause for pattern, cause in _PATTERNS if pattern in lower), None)
    if cause_in_text is Cause.DISK_BYTES and space is not None and space.cause is Cause.DISK_INODES:
        return Cause.DISK_INODES
    return cause_in_text


def shortage(space: Space, descriptors: Descriptors | None = None) -> Cause | None:
    """The resource that is exhausted according to these measurements; None if none is."""
    if space.cause:
        return space.cause
    return Cause.DESCRIPTORS if descriptors is not None and descriptors.exhausted else None


def describe(cause: Cause, part: str, space: Space, descriptors: Descriptors | None = None) -> str:
    """One line for an operator: what is exhausted, in which part, how much is left, and what to free."""
    if cause in {Cause.DISK_BYTES, Cause.DISK_INODES}:
        inodes = "" if space.free_inodes is None else f", {space.free_inodes} inodes"
        problem = "disk full" if cause is Cause.DISK_BYTES else "out of inodes"
        remedy = "free space" if cause is Cause.DISK_BYTES else "remove some of the many small files"
        free = f"{space.free_bytes / _MIB:.1f} MiB{inodes} free"
        return f"{problem} under {part}: {space.path} has {free}; {remedy} on that file system, or enlarge it"
    if cause is Cause.DESCRIPTORS:
        used = f" ({descriptors.used} of {descriptors.limit} open)" if descriptors else ""
        return f"{part} is out of file descriptors{used}; close connections, or raise its limit (`ulimit -n`)"
    if cause is Cause.READ_ONLY:
        return f"{space.path}, where {part} stores its data, is read-only; check the disk and mount it writable"
    return f"{part} is out of memory; give it more, or stop what uses the memory of this machine"


_DATA_FOLDERS: Final = {
    "broker": ("nats", "nats-1", "nats-2", "nats-3"),
    "database": ("postgres",),
    "sandboxes": ("sandboxes", "sandboxes-disks"),
}
"""The folders of each part of a local stack, in the home of the stack."""


def measure_space(folder: Path) -> Space:
    """The file system of this folder, as an unprivileged user sees it. Raises `OSError`."""
    status = os.statvfs(folder)
    return Space(
        path=str(folder),
        free_bytes=status.f_bavail * status.f_frsize,
        total_bytes=status.f_blocks * status.f_frsize,
        free_inodes=status.f_favail if status.f_files else None,
    )


def measure_home(home: Path) -> dict[str, Space]:
    """The file systems of a home by part: `home`, and the parts of a local stack in it. Missing folders are omitted."""
    folders = {"home": [home]} | {part: [home / name for name in names] for part, names in _DATA_FOLDERS.items()}
    space_by_part: dict[str, Space] = {}
    for part, paths in folders.items():
        spaces = [measure_space(place) for place in paths if place.is_dir()]
        if spaces:
            space_by_part[part] = min(spaces, key=lambda space: (space.cause is None, space.free_bytes))
    return space_by_part


def shortages(spaces: Mapping[str, Space]) -> list[str]:
    """One line for each full file system. If several parts share it, the line names all of them."""
    full = {part: space for part, space in spaces.items() if space.cause}
    shared: dict[tuple[int, int, int | None], list[str]] = {}
    for part, space in full.items():
        shared.setdefault((space.total_bytes, space.free_bytes, space.free_inodes), []).append(part)
    return [
        describe(cause, ", ".join(parts), full[parts[-1]])
        for parts in shared.values()
        if (cause := full[parts[0]].cause)
    ]
