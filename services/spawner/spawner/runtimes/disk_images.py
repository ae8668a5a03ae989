"""Sparse image files with an ext4 file system, readable only by their owner. All functions block."""

import errno
import os
import secrets
import subprocess
from pathlib import Path
from typing import BinaryIO, Final

DRAFT: Final = ".new"
"""The suffix of an image that is not complete yet."""
_PROGRAM_SECONDS: Final = 60.0
"""The timeout of each program, such as `mkfs.ext4`."""
_OWNER_ONLY: Final = 0o600
_CHUNK_BYTES: Final = 1 << 20
_MKFS_OPTIONS: Final = (
    *("-q", "-F", "-m", "1", "-J", "size=4", "-O", "^resize_inode"),
    *("-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"),
)
_SBIN: Final = "/usr/sbin:/sbin:/usr/bin:/bin"
"""The `PATH` of the programs."""


class DiskError(OSError):
    """A sized file system can't be created or mounted; the message has the reason."""


def make(image: Path, size: int) -> None:
    """Create an image with an empty file system of `size` bytes. Raises `OSError`."""
    draft = _draft(image)
    with _create(draft) as file:
        file.truncate(size)
    run("mkfs.ext4", *_MKFS_OPTIONS, str(draft))
    draft.replace(image)


def copy(source: Path, image: Path) -> None:
    """Copy an image as a sparse file. Raises `OSError`."""
    draft = _draft(image)
    with source.open("rb") as old, _create(draft) as new:
        _copy_sparse(old, new)
    draft.replace(image)


def _draft(image: Path) -> Path:
    """A path for the incomplete image, which no other writer uses."""
    return image.with_name(f"{image.name}.{secrets.token_hex(4)}{DRAFT}")


def _create(path: Path) -> BinaryIO:
    """Create a file that only its owner may read, from the moment it exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY)
    os.fchmod(descriptor, _OWNER_ONLY)  # regardless of the umask
    return os.fdopen(descriptor, "wb")


def _copy_sparse(old: BinaryIO, new: BinaryIO) -> None:
    size = os.fstat(old.fileno()).st_size
    new.truncate(size)
    offset = 0
    while offset < size:
        try:
            offset = os.lseek(old.fileno(), offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return  # no data follows
        end = os.lseek(old.fileno(), offset, os.SEEK_HOLE)
        while offset < end:
            block = os.pread(old.fileno(), min(_CHUNK_BYTES, end - offset), offset)
            offset += os.pwrite(new.fileno(), block, offset)


def run(program: str, *arguments: str) -> None:
    """Run a program to its end. Raises `DiskError` with the first line of its standard error."""
    try:
        completed = subprocess.run(
            [program, *arguments],
            capture_output=True,
            timeout=_PROGRAM_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
            env={"PATH": _SBIN, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DiskError(f"{program}: {error}") from error
    if completed.returncode != 0:
        lines = completed.stderr.decode(errors="replace").strip().splitlines()
        raise DiskError(f"{program}: {lines[0] if lines else f'exit status {completed.returncode}'}")
