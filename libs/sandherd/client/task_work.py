"""The files that a task begins with. The client packs and uploads them before the task; its worker unpacks them."""

import asyncio
import errno
import os
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Final, Literal

from sandherd.archives import writer
from sandherd.archives.ignore import parents
from sandherd.archives.safe_paths import DEEPEST
from sandherd.client.connection import Connection
from sandherd.client.errors import HerdError
from sandherd.client.git_ignored import ignored_by_git
from sandherd.client.regular_file import open_regular_file
from sandherd.client.sandboxes import archive, transfer
from sandherd.client.sandboxes.transfer import OnTransfer, silent
from sandherd.client.work_source import WorkSource
from sandherd.contracts.errors import Code
from sandherd.contracts.events import ArtifactRef

_FIELD: Final = "dir"
_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
LeftOut = Callable[[str, str], None]
"""A function that is called, in another thread, with each link that is left out because it leads out of the folder, and
with its target."""


async def upload_work(
    connection: Connection,
    task: str,
    work: WorkSource,
    limit: int | None,
    *,
    on_progress: OnTransfer = silent,
    left_out: LeftOut | None = None,
) -> ArtifactRef:
    """Pack and upload the files of a task before it is submitted.

    Raises `HerdError`, also if the archive has more than `limit` bytes.
    """
    with tempfile.TemporaryFile() as file:
        await asyncio.to_thread(pack_work, work, file, limit, left_out)
        content = transfer.archive_source(file)
        return await transfer.store(connection, connection.project, task, content, report=on_progress)


def pack_work(work: WorkSource, out: IO[bytes], limit: int | None, left_out: LeftOut | None = None) -> None:
    """Write the folder and the files as one archive. A file replaces a file of the folder at the same path. Blocks.

    Raises `HerdError` if something can't be read, if the archive is over the limit, or if a path of `files` is a folder
    or below a file.
    """
    _check_files(work.files)
    try:
        if work.folder is not None:
            writer.pack(work.folder, out, limit=limit, skips=_skips_for(work.folder, work.files, left_out), strict=True)
        _add_files(work.files, out, limit)
    except writer.ArchiveTooLargeError:
        raise archive.too_large_error(str(work.folder), None, limit or 0) from None
    except OSError as error:
        raise _pack_error(work, error) from None
    if limit is not None and out.seek(0, os.SEEK_END) > limit:
        raise archive.too_large_error("the files of the task", out.tell(), limit)


def _pack_error(work: WorkSource, error: OSError) -> HerdError:
    if error.errno in _DISK_FULL:
        return HerdError.of(
            Code.UNAVAILABLE,
            f"the archive of the task's files does not fit into {tempfile.gettempdir()}: {error.strerror}",
            remedy="free space there, or set TMPDIR to a folder with more",
        )
    text = f"{error.filename or work.folder}: {error.strerror or error}"
    return HerdError.of(Code.INVALID_FIELD, text, field=_FIELD, remedy="name a folder or file that can be read")


def _check_files(files: Mapping[str, Path]) -> None:
    """Raise `HerdError` if a file is at a path that is a folder of another file."""
    for name in files:
        for parent in parents(name):
            if parent in files:
                raise _not_a_folder(parent, name)


def _not_a_folder(parent: str, name: str) -> HerdError:
    return HerdError.of(
        Code.INVALID_FIELD, f"{name}: {parent} is not a folder", field="files", remedy="give one of them another name"
    )


def _skips_for(folder: Path, files: Mapping[str, Path], left_out: LeftOut | None) -> Callable[[str, bool], bool]:
    ignored = ignored_by_git(folder)
    file_below = {parent: name for name in files for parent in parents(name)}

    def skips(path: str, directory: bool) -> bool:  # noqa: FBT001  # `writer.pack`'s signature
        if path.count("/") >= DEEPEST:
            raise HerdError.of(
                Code.INVALID_FIELD,
                f"{folder}: an entry is more than {DEEPEST} folders deep",
                field=_FIELD,
                remedy="name a folder below, or have git ignore it",
            )
        if ignored(path, directory) or (path in files and not directory):
            return True
        target = _outside_target(folder, path)
        if target is not None:
            if left_out is not None:
                left_out(path, target)
            return True
        _check_entry(path, files, file_below, directory=directory)
        return False

    return skips


def _check_entry(path: str, files: Mapping[str, Path], file_below: Mapping[str, str], *, directory: bool) -> None:
    """Raise `HerdError` if an entry of the folder conflicts with a single file.

    The entry may be a file where the single file needs a folder, or a folder at the path of the single file.
    `file_below` maps each folder that a single file needs to that file.
    """
    if path in file_below and not directory:
        raise _not_a_folder(path, file_below[path])
    if path in files:
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"{path} is a folder, and can't be replaced by a file",
            field="files",
            remedy="give the file another name",
        )


def _outside_target(folder: Path, path: str) -> str | None:
    """The target of a link that leads out of the folder; None for anything else."""
    try:
        target = str((folder / path).readlink())
    except OSError:
        return None
    normalised = os.path.normpath(PurePosixPath(path).parent / target)
    return target if normalised.startswith(("/", "../")) or normalised == ".." else None


def _add_files(files: Mapping[str, Path], out: IO[bytes], limit: int | None) -> None:
    """Append files to the archive, each with its parent folders. Raises `OSError`, and `HerdError` over the limit."""
    if not files:
        return
    mode: Literal["a", "w"] = "a" if out.seek(0, os.SEEK_END) else "w"
    out.seek(0)
    with tarfile.open(fileobj=out, mode=mode, format=tarfile.PAX_FORMAT, dereference=True) as tar:
        for name, path in files.items():
            for parent in parents(name):
                writer.add_directory(tar, parent, 0o755)
            with open_regular_file(path) as file:
                info = tar.gettarinfo(str(path), name, file)
                if limit is not None and out.tell() + info.size > limit:
                    raise archive.too_large_error("the files of the task", out.tell() + info.size, limit)
                info.uid = info.gid = 0
                info.uname = info.gname = ""
                tar.addfile(info, file)
