"""Packs and unpacks folders as tar archives on the client. All functions block; they run in a thread.

Links are packed as links and never followed. Archives from a sandbox are not trusted: links that may lead out of the
folder are skipped, and nothing is written through any other link.
"""

import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from sandherd.archives import extraction, writer
from sandherd.archives.safe_paths import DEEPEST
from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code

_REMEDY: Final = "pack it there with `sandherd exec SANDBOX -- tar cf work.tar FOLDER`, and copy work.tar"


def pack(folder: Path, out: IO[bytes], limit: int | None) -> None:
    """Write a folder as an archive. Raises `HerdError` (`too_large`) when it exceeds `limit` bytes, and `OSError`."""

    def refuse_deep(path: str, _directory: bool) -> bool:  # noqa: FBT001  # `writer.pack`'s signature
        if path.count("/") >= DEEPEST:
            raise _too_deep_error(folder)
        return False

    try:
        writer.pack(folder, out, limit=limit, skips=refuse_deep, strict=True)
    except writer.ArchiveTooLargeError:
        assert limit is not None
        raise too_large_error(str(folder), None, limit) from None


def _too_deep_error(folder: Path) -> HerdError:
    """The error for a folder that is too deep to be unpacked in the sandbox."""
    return HerdError.of(
        Code.INVALID_FIELD,
        f"{folder}: an entry is more than {DEEPEST} folders deep",
        field="path",
        remedy="pack it with tar, and copy the archive",
    )


def unpack(
    archive: IO[bytes],
    folder: Path,
    *,
    limit: int | None = None,
    skips: Callable[[str], bool] = lambda _path: False,
    prune: Callable[[Path, Path], None] | None = None,
) -> tuple[tuple[str, str], ...]:
    """Unpack into a new folder, or merge into an existing one. Either everything becomes visible, or nothing.

    `limit` is the maximum number of unpacked bytes. Without it, the archive must not be compressed. Entries for which
    `skips(path)` is true are left out. `prune(unpacked, folder)` may delete other entries before any is visible.
    Returns the links that were skipped because they may lead out of the folder, each with its target. Raises
    `HerdError`.
    """
    parent = folder if folder.is_dir() else folder.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".sandherd-", dir=parent))
    except OSError as error:
        raise _not_writable_error(folder, error) from None
    try:
        # A sandbox packs without compression: the contents can't be larger than the archive.
        max_bytes = limit if limit is not None else archive.seek(0, os.SEEK_END)
        archive.seek(0)
        left_out = extraction.unpack(archive, staging, limit=max_bytes, outward=False, skips=skips).left_out
        if prune is not None:
            prune(staging, folder)
        staging.chmod(0o755)
        if folder.is_dir():
            _merge(staging, folder)
        else:
            staging.rename(folder)
    except (tarfile.TarError, extraction.UnpackedTooLargeError) as error:
        message = f"the sandbox's archive can't be unpacked: {error}"
        raise HerdError.of(Code.REFUSED, message, field="path", remedy=_REMEDY) from None
    except OSError as error:
        raise _not_writable_error(folder, error) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return left_out


def _merge(staging: Path, folder: Path) -> None:
    descriptors = [os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for path in (staging, folder)]
    try:
        extraction.merge(*descriptors)
    except extraction.MergeConflictError as conflict:
        raise HerdError.of(
            Code.CONFLICT,
            f"{folder / str(conflict)} is a folder here and not in the sandbox, or vice versa",
            field="path",
            remedy="copy to another folder",
        ) from None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _not_writable_error(folder: Path, error: OSError) -> HerdError:
    return HerdError.of(
        Code.INVALID_FIELD,
        f"{folder} can't be written: {error.strerror or error}",
        field="path",
        remedy="copy to a folder with free space and write permission",
    )


def too_large_error(name: str, size: int | None, limit: int) -> HerdError:
    """The error for a file or archive that has more than `limit` bytes; `size` is None if its size is not known."""
    actual_size = "has more" if size is None else f"has {size} bytes"
    return HerdError.of(
        Code.TOO_LARGE,
        f"{name} {actual_size}; the maximum size of a file or an archive is {limit} bytes",
        field="path",
        remedy="copy less at once, or increase SANDHERD_MAX_FILE_MB of the herd",
    )
