"""New files: they exist under their name when they are complete. Before, they have a temporary name or are uploaded.

The directory itself is never created: if its file system is not mounted, nothing must be written to the mount point.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Final, Protocol

from event_ingest.storage.errors import StorageError, StorageFault, storage_errors
from sandherd.private_files import FILE, make_directory, sync_directory

PARTIAL: Final = ".partial"
"""The end of a file's name while it is being written."""


class FileSink(Protocol):
    """The file or upload to which the content of a new file is written."""

    def write(self, data: memoryview, /) -> int:
        """Write some of the data. Returns the number of bytes that were written."""


class NewFile:
    """A file that is being written. Errors of writing it are raised as `StorageError`; other errors are unchanged."""

    def __init__(self, sink: FileSink, name: str) -> None:
        self._sink = sink
        self._name = name

    def write(self, data: bytes) -> None:
        """Write all of the data."""
        remaining = memoryview(data)
        with storage_errors(self._name):
            while remaining:
                remaining = remaining[self._sink.write(remaining) :]


@contextmanager
def new_file(directory: Path, name: str, *, private: bool = False) -> Iterator[NewFile]:
    """A new file below an existing directory. It gets its name when the block has ended without an error.

    At this time it is complete and on disk. `name` may contain folders, which are created. A `private` file is
    accessible to its owner only.
    """
    check_directory(directory)
    path = directory / name
    partial = path.with_name(f"{path.name}.{token_hex(4)}{PARTIAL}" if private else path.name + PARTIAL)
    with storage_errors(name):
        if private:
            make_directory(path.parent)
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = open(partial, "wb", buffering=0, opener=_open_private if private else None)  # noqa: SIM115  # opener
    try:
        with opened:
            yield NewFile(opened, name)
            with storage_errors(name):
                os.fsync(opened.fileno())
        with storage_errors(name):
            partial.rename(path)
            for folder in path.relative_to(directory).parents:
                sync_directory(directory / folder)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def check_directory(directory: Path) -> None:
    """Raises `StorageError` if the directory does not exist."""
    if not directory.is_dir():
        raise StorageError(StorageFault.UNREACHABLE, f"{directory} is not an existing directory")


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, FILE)
