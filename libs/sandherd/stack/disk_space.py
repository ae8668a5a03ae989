"""Checks whether the file systems of a home have the space that a stack needs to start."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandherd.bus.storage_causes import Cause, Space, cause_of, measure_space
from sandherd.stack import cluster

_MIB: Final = 1024 * 1024
SPACE_REMEDY: Final = (
    "free space there by removing files that are not the herd's, enlarge that file system, or use a home on another "
    "one with `sandherd --home DIR up`"
)
_FULL_DISK_CAUSES: Final = frozenset({Cause.DISK_BYTES, Cause.DISK_INODES})


@dataclass(frozen=True)
class SpaceNeed:
    """Free bytes and free inodes."""

    bytes: int
    inodes: int

    def __add__(self, other: "SpaceNeed") -> "SpaceNeed":
        return SpaceNeed(self.bytes + other.bytes, self.inodes + other.inodes)


NEW_DATABASE: Final = SpaceNeed(64 * _MIB, 2000)
"""After its first start a database had 42 MiB and 1,407 files. A further segment of its write-ahead log has 16 MiB."""
NEW_BROKER: Final = SpaceNeed(8 * _MIB, 400)
"""Space for the first files of a nats-server."""
EXISTING_DATABASE: Final = SpaceNeed(20 * _MIB, 64)
"""Space for one segment of the write-ahead log (16 MiB), without which Postgres does not start, and a checkpoint."""
EXISTING_BROKER: Final = SpaceNeed(4 * _MIB, 64)
"""Space for a nats-server that has stored data to start."""
RECORDS: Final = SpaceNeed(4 * _MIB, 64)
"""Space for logs and records of the stack itself."""


def missing_space(home: Path, servers: int) -> str | None:
    """The error text if a file system of this home has too little space to start the stack, else None.

    The text has the folder, the free space and the needed space. Raises `OSError` if the home can't be inspected.
    """
    is_new = not _has_database(home)
    for folder, need in _needs_by_file_system(home, servers):
        space = measure_space(folder)
        problem = _shortfall(space, need)
        if problem:
            return f"{folder} has {problem} that {'a new stack' if is_new else 'the stack'} needs to start"
    return None


def refused_for_space(home: Path, servers: int, reported: str) -> str | None:
    """The error text if a start failed for lack of space, else None. `reported` is the text with which it failed.

    The start lacked space if there is too little space now, or if `reported` is the error of a full disk.
    """
    missing = missing_space(home, servers)
    if missing or cause_of(reported) not in _FULL_DISK_CAUSES:
        return missing
    space = measure_space(_existing_directory(home))
    return f"the disk was full while the stack started: {space.path} has {_mib_text(space.free_bytes)} free"


def _needs_by_file_system(home: Path, servers: int) -> Iterator[tuple[Path, SpaceNeed]]:
    """For each file system: a folder on it, and the space that is needed there."""
    needs: dict[int, tuple[Path, SpaceNeed]] = {}
    for folder, need in _part_needs(home, servers):
        directory = _existing_directory(folder)
        device = directory.stat().st_dev
        previous = needs.get(device)
        needs[device] = (previous[0], previous[1] + need) if previous else (directory, need)
    yield from needs.values()


def _part_needs(home: Path, servers: int) -> Iterable[tuple[Path, SpaceNeed]]:
    yield home, RECORDS
    yield home / "postgres", EXISTING_DATABASE if _has_database(home) else NEW_DATABASE
    for directory in cluster.directories(home, servers):
        yield directory, EXISTING_BROKER if (directory / "data").is_dir() else NEW_BROKER


def _has_database(home: Path) -> bool:
    return (home / "postgres" / "data" / "PG_VERSION").exists()


def _existing_directory(path: Path) -> Path:
    """The path, or the closest directory above it that exists."""
    return next(directory for directory in (path, *path.parents) if directory.exists())


def _shortfall(space: Space, need: SpaceNeed) -> str | None:
    if space.free_bytes < need.bytes:
        return f"{_mib_text(space.free_bytes)} free, and not the {_mib_text(need.bytes)}"
    if space.free_inodes is not None and space.free_inodes < need.inodes:
        return f"{space.free_inodes} free inodes, and not the {need.inodes}"
    return None


def _mib_text(size: int) -> str:
    return f"{size / _MIB:.0f} MiB"
