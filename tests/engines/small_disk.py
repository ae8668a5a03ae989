"""A small file system that is really full, mounted in its own mount namespace, which ends with its holder.

The holder waits on a pipe of ours, so that nothing stays mounted even if the tests are killed. Other processes reach
the file system through `/proc/<holder>/root`.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engines.private_mounts import PRIVATE_MOUNTS

_TMPFS = 'mount -t tmpfs -o "size=$1,nr_inodes=$2,mode=0755" tmpfs "$3"'
_EXT4 = 'truncate -s "$1" "$4" && mkfs.ext4 -q -m 0 -N "$2" "$4" && mount -o loop "$4" "$3"'


@dataclass
class SmallDisk:
    """A file system that lives as long as the process that holds it."""

    folder: Path
    holder: int

    @property
    def path(self) -> Path:
        """The path of the file system for processes outside of its namespace."""
        return Path(f"/proc/{self.holder}/root{self.folder}")

    @property
    def free_bytes(self) -> int:
        """The number of free bytes."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill_bytes(self) -> None:
        """Use every free byte."""
        with (self.path / "filler").open("wb", buffering=0) as file:
            for size in (65_536, 512, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    continue

    def fill_inodes(self) -> None:
        """Use every inode, with empty files."""
        folder = self.path / "fillers"
        folder.mkdir()
        try:
            for number in range(10**6):
                (folder / str(number)).touch()
        except OSError:
            return

    def free(self) -> None:
        """Free the used space."""
        (self.path / "filler").unlink(missing_ok=True)
        folder = self.path / "fillers"
        for file in folder.iterdir() if folder.is_dir() else ():
            file.unlink()


@asynccontextmanager
async def small_disk(folder: Path, *, size: int, inodes: int, kind: str = "tmpfs") -> AsyncIterator[SmallDisk]:
    """Mount a `tmpfs`, or an `ext4` on a loop device. If that is not possible the test fails with one line."""
    pipe = asyncio.subprocess.PIPE
    mount = _TMPFS if kind == "tmpfs" else _EXT4
    script = f"{{ {mount}; }} && echo ready && exec cat"
    image = folder.with_suffix(".img")
    words = [str(size), str(inodes), str(folder), str(image)]
    folder.mkdir()
    holder = await asyncio.create_subprocess_exec(
        *PRIVATE_MOUNTS, "/bin/sh", "-c", script, "sh", *words, stdin=pipe, stdout=pipe, stderr=pipe
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stderr is not None
    try:
        if await holder.stdout.readline() != b"ready\n":
            errors = (await holder.stderr.read()).decode().strip()
            pytest.fail(f"no {kind} can be mounted here, run the tests as root: {errors}", pytrace=False)
        yield SmallDisk(folder, holder.pid)
    finally:
        holder.stdin.close()
        await holder.wait()
        image.unlink(missing_ok=True)
