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
_SECRET: Final = 0o600
_CHUNK: Final = 1 << 20
_MKFS: Final = (
    *("-q", "-F", "-m", "1", "-J", "size=4", "-O", "^resize_inode"),
    *("-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"),
)
_SBIN: Final = "/usr/sbin:/sbin:/usr/bin:/bin"


class DiskError(OSError):
    """A sized file system can't be created or mounted; the message has the reason."""


def make(image: Path, size: int) -> None:
    """Create an image with an empty file system of `size` bytes. Raises `OSError`."""
    draft = _draft(image)
    with _create(draft) as file:
        file.truncate(size)
    run("mkfs.ext4", *_MKFS, str(draft))
    draft.replace(image)


def copy(source: Path, to: Path) -> None:
    """Copy an image sparsely. Raises `OSError`."""
    draft = _draft(to)
    with source.open("rb") as old, _create(draft) as new:
        _copy_sparse(old, new)
    draft.replace(to)


def _draft(image: Path) -> Path:
    """A draft path unique to each writer."""
    return image.with_name(f"{image.name}.{secrets.token_hex(4)}{DRAFT}")


def _create(path: Path) -> BinaryIO:
    """Create a file that only its owner may read, from the moment it exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _SECRET)
    os.fchmod(descriptor, _SECRET)  # regardless of the umask
    return os.fdopen(descriptor, "wb")


def _copy_sparse(old: BinaryIO, new: BinaryIO) -> None:
    size = os.fstat(old.fileno()).st_size
    new.truncate(size)
    at = 0
    while at < size:
        try:
            at = os.lseek(old.fileno(), at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return  # no data follows
        end = os.lseek(old.fileno(), at, os.SEEK_HOLE)
        while at < end:
            block = os.pread(old.fileno(), min(_CHUNK, end - at), at)
            at += os.pwrite(new.fileno(), block, at)


def run(program: str, *arguments: str) -> None:
    """Run a program to its end. Raises `DiskError` with the first line of its standard error."""
    try:
        ended = subprocess.run(
            [program, *arguments],
            capture_output=True,
            timeout=_PROGRAM_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
            env={"PATH": _SBIN, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DiskError(f"{program}: {error}") from error
    if ended.returncode != 0:
        lines = ended.stderr.decode(errors="replace").strip().splitlines()
        raise DiskError(f"{program}: {lines[0] if lines else f'exit status {ended.returncode}'}")
