"""Extracts archives and writes files in the sandbox, into the work tree or beside it. All functions block.

`sandherd.archives` decides which archives are refused. This module raises its errors as refusals of a request.
"""

import os
import secrets
import shutil
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from sandherd.archives import extraction
from sandherd.archives.extraction import MergeConflictError, merge
from sandherd.archives.ignore import UNFINISHED
from sandherd.archives.no_follow import is_directory, is_link
from sandherd.archives.safe_paths import UnsafePathError
from sandherd.contracts.commands import SandboxSpec
from sandherd.contracts.errors import Code, ContractError
from sandherd_worker.access.safe_paths import WorkTreePaths, opened


def unpack(archive: IO[bytes], folder: Path, limit: int, *, outward: bool = True) -> int:
    """Unpack a tar archive, compressed or not, into an empty folder; returns how many files it contained.

    Links are created after all files, so that nothing is written through a link. Their targets may be outside the
    folder; without `outward` such links are left out. Raises `OSError`, and `ContractError` for an invalid archive, for
    entries outside the folder, or for more than `limit` bytes.
    """
    try:
        return extraction.unpack(archive, folder, limit=limit, outward=outward).files
    except extraction.UnpackedTooLargeError:
        raise ContractError(Code.TOO_LARGE, f"unpacked it is larger than {limit} bytes") from None
    except UnsafePathError as error:
        raise ContractError(
            Code.REFUSED, f"an entry leads out of the folder: {error}", field="path", remedy="leave it out"
        ) from None
    except tarfile.TarError as error:
        raise ContractError(Code.INVALID_FIELD, f"this is not a complete tar archive: {error}", field="data") from None


def unpack_staged(
    archive: IO[bytes],
    folder: int,
    name: str,
    path: str,
    limit: int,
    *,
    outward: bool = True,
    keeps: Callable[[str], bool] | None = None,
) -> int:
    """Unpack an archive as the folder `name` in an open folder, or merge it into an existing folder of that name.

    The name `.` is the open folder itself. The archive is unpacked under a temporary name first: nothing is visible
    before the whole archive was accepted, and a merge finds all conflicts before it moves a file. If `keeps` is set,
    only files for whose paths it returns True are merged. Each folder is held open, so that an agent that replaces one
    meanwhile can't redirect a write. `path` is the folder's name in error messages. Returns how many files the archive
    contained. Raises `ContractError`, `OSError`.
    """
    staging = f"{UNFINISHED}{secrets.token_hex(8)}"
    os.mkdir(staging, 0o755, dir_fd=folder)
    try:
        with opened(folder, staging, path) as source:
            files = unpack(archive, Path(f"/proc/self/fd/{source}"), limit, outward=outward)
            if keeps is not None:
                _prune(source, keeps)
            if name != "." and is_directory(folder, name) is None:
                os.rename(staging, name, src_dir_fd=folder, dst_dir_fd=folder)
            else:
                with opened(folder, name, path) as target:
                    merge(source, target)
    except MergeConflictError as clash:
        raise ContractError(
            Code.CONFLICT,
            f"{path[:200]}/{str(clash)[:200]} is a folder in the archive and a file in the work tree, or the reverse",
            field="path",
            remedy="remove or rename it in the work tree, or choose another path",
        ) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True, dir_fd=folder)
    return files


def _prune(folder: int, keeps: Callable[[str], bool]) -> None:
    """Delete the files for which `keeps` returns False, and each folder that is empty then."""
    for above, folders, files, place in os.fwalk(".", topdown=False, dir_fd=folder):
        links = [name for name in folders if is_directory(place, name) is None]
        for name in (*files, *links):
            if not keeps(os.path.normpath(f"{above}/{name}")):
                os.unlink(name, dir_fd=place)
        for name in set(folders).difference(links):
            with suppress(OSError):  # it is not empty
                os.rmdir(name, dir_fd=place)


def write_files(spec: SandboxSpec, work_dir: Path) -> None:
    """Write the spec's files into the work tree. A file replaces a link of its name; none is written outside the tree.

    Raises `ContractError`, `OSError`.
    """
    paths = WorkTreePaths(work_dir)
    for name, text in spec.files.items():
        with paths.open_parent(name, make=True, follow=False) as (folder, last):
            _write(folder, last, text)


def _write(folder: int, name: str, text: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    if is_link(folder, name):
        os.unlink(name, dir_fd=folder)
    with os.fdopen(os.open(name, flags, 0o666, dir_fd=folder), "w") as file:
        file.write(text)
