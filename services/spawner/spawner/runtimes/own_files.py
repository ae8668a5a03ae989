"""Reads and writes files in a sandbox's own directories on this host, where an agent may have created any entry.

Links are never followed. Each component of a path is opened separately, relative to its parent's descriptor, so that an
agent can't redirect it by replacing a component meanwhile.
"""

import errno
import os
import secrets
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from sandherd.archives.no_follow import READ_DIRECTORY, READ_FILE
from spawner.runtimes.commands import File, parts_of
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault
from spawner.runtimes.layout import SandboxDirectory

_OWNER_ONLY: Final = 0o700
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MISSING: Final = frozenset({errno.ENOENT})
_UNEXPECTED_KIND: Final = frozenset(
    {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTEMPTY, errno.ENXIO}
)
"""The errors for an entry of another kind than requested, such as a link that an agent has created."""


def write_files(directory: SandboxDirectory, files: Collection[File]) -> None:
    """Write files, each atomically. Raises `RuntimeFailedError`."""
    for file in files:
        *folders, name = parts_of(file.path)
        with _as_runtime_errors(file.path), _open_folder(directory, folders, make=True) as folder:
            _write(directory, folder, name, file)


def read(directory: SandboxDirectory, path: str, limit: int) -> bytes | None:
    """A file's content, or None if it does not exist. Raises `RuntimeFailedError` if it is not a file or too large."""
    *folders, name = parts_of(path)
    try:
        with _as_runtime_errors(path), _open_folder(directory, folders, make=False) as folder:
            return _read(folder, name, path, limit)
    except FileNotFoundError:
        return None


def _read(folder: int, name: str, path: str, limit: int) -> bytes:
    descriptor = os.open(name, READ_FILE, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise RuntimeFailedError(RuntimeFault.REFUSED, f"{path} is not a regular file")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise RuntimeFailedError(RuntimeFault.REFUSED, f"{path} exceeds the limit of {limit} bytes")
    return content


def _write(directory: SandboxDirectory, folder: int, name: str, file: File) -> None:
    """Write a file to a directory that the agent can't see, then rename it, so that the agent sees it complete."""
    part = directory.folder / "run" / f"put.{secrets.token_hex(8)}"
    descriptor = os.open(part, _WRITE, file.mode)
    try:
        with os.fdopen(descriptor, "wb") as output:
            output.write(file.content)
            directory.set_owner(descriptor)
            os.fchmod(descriptor, file.mode)
        os.rename(part, name, dst_dir_fd=folder)
    except BaseException:  # re-raised, without leaving a partial file
        part.unlink(missing_ok=True)
        raise


@contextmanager
def _open_folder(directory: SandboxDirectory, folders: list[str], *, make: bool) -> Iterator[int]:
    """A descriptor of the directory at this path. `make`: create missing directories. Raises `OSError`."""
    current = os.open(directory.folder, READ_DIRECTORY)
    try:
        for name in folders:
            created = make and _make_folder(current, name)
            child = os.open(name, READ_DIRECTORY, dir_fd=current)
            if created:
                directory.set_owner(child)
            os.close(current)
            current = child
        yield current
    finally:
        os.close(current)


def _make_folder(parent: int, name: str) -> bool:
    """Create a directory; False if the name exists. Raises `OSError`."""
    with suppress(FileExistsError):
        os.mkdir(name, _OWNER_ONLY, dir_fd=parent)
        return True
    return False


@contextmanager
def _as_runtime_errors(path: str) -> Iterator[None]:
    """Raise errors of the block as `RuntimeFailedError`, except `FileNotFoundError`."""
    try:
        yield
    except OSError as error:
        if error.errno in _MISSING:
            raise
        is_unexpected_kind = error.errno in _UNEXPECTED_KIND
        reason = "contains a link, or is not a directory or file as required" if is_unexpected_kind else error.strerror
        raise RuntimeFailedError(
            RuntimeFault.REFUSED if is_unexpected_kind else RuntimeFault.UNAVAILABLE, f"{path[:200]!r}: {reason}"
        ) from error
