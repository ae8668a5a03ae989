"""What the file systems below a herd's folders have left, measured."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sandherd.bus.storage_causes import Space, describe

_PARTS: Final = {
    "broker": ("nats", "nats-1", "nats-2", "nats-3"),
    "database": ("postgres",),
    "sandboxes": ("sandboxes", "sandboxes-disks"),
}
"""Where each part of a local stack stores its files, below its home."""


def measure_space(folder: Path) -> Space:
    """The file system of this folder, as an unprivileged user sees it. Raises `OSError`."""
    found = os.statvfs(folder)
    return Space(
        path=str(folder),
        free_bytes=found.f_bavail * found.f_frsize,
        total_bytes=found.f_blocks * found.f_frsize,
        free_inodes=found.f_favail if found.f_files else None,
    )


def measure_home(home: Path) -> dict[str, Space]:
    """The file systems of a home by part: `home`, and what a local stack has in it. What is not there is left out."""
    folders = {"home": [home]} | {part: [home / name for name in names] for part, names in _PARTS.items()}
    found: dict[str, Space] = {}
    for part, places in folders.items():
        spaces = [measure_space(place) for place in places if place.is_dir()]
        if spaces:
            found[part] = min(spaces, key=lambda space: (space.cause is None, space.free_bytes))
    return found


def shortages(spaces: Mapping[str, Space]) -> list[str]:
    """A line for each file system that is full; one that several parts share is named once, with all of them."""
    short = {part: space for part, space in spaces.items() if space.cause}
    shared: dict[tuple[int, int, int | None], list[str]] = {}
    for part, space in short.items():
        shared.setdefault((space.total_bytes, space.free_bytes, space.free_inodes), []).append(part)
    return [
        describe(cause, ", ".join(parts), short[parts[-1]])
        for parts in shared.values()
        if (cause := short[parts[0]].cause)
    ]
