"""Lists the folders of the work tree. It blocks, so it runs in a thread."""

import json
import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, Literal

from sandherd.archives.no_follow import READ_DIRECTORY
from sandherd.contracts.model import MAX_WHOLE
from sandherd.contracts.requests.access import FileEntry, FileList, ListFilesFields
from sandherd_worker.access.safe_paths import WorkTreePaths, opened, path_error
from sandherd_worker.storable_text import valid_text

_MAX_REPLY_BYTES: Final = 192 * 1024
_ENTRY_BYTES: Final = 160
"""Estimated size of an entry without its path, in bytes."""


def list_files(tree: WorkTreePaths, request: ListFilesFields) -> FileList:
    """The entries of a folder, or the one file that the path names. Raises `ContractError`."""
    with tree.open_parent(request.path) as (folder, name):
        prefix = _normalized(request.path)
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                return FileList(entries=[_entry(prefix, status)])
            with opened(folder, name, request.path) as subfolder:
                return _first_entries(_walk(subfolder, f"{prefix}/" if prefix else "", request), request.limit)
        except OSError as error:
            raise path_error(request.path, error) from None


def _first_entries(entries_found: Iterator[FileEntry], limit: int) -> FileList:
    """The first entries, up to the limit or to the maximum size of one reply."""
    entries: list[FileEntry] = []
    reply_bytes = 0
    for entry in entries_found:
        reply_bytes += len(json.dumps(entry.path)) + _ENTRY_BYTES
        if len(entries) == limit or reply_bytes > _MAX_REPLY_BYTES:
            return FileList(entries=entries, truncated=True)
        entries.append(entry)
    return FileList(entries=entries)


def _walk(folder: int, prefix: str, request: ListFilesFields) -> Iterator[FileEntry]:
    """The entries, sorted by name in each folder. A folder that can't be read has only its own entry."""
    for name in sorted(os.listdir(folder)):
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            continue
        yield _entry(f"{prefix}{name}", status)
        if request.recursive and stat.S_ISDIR(status.st_mode):
            yield from _walk_subfolder(folder, name, prefix, request)


def _walk_subfolder(folder: int, name: str, prefix: str, request: ListFilesFields) -> Iterator[FileEntry]:
    try:
        subfolder = os.open(name, READ_DIRECTORY, dir_fd=folder)
    except OSError:
        return
    try:
        yield from _walk(subfolder, f"{prefix}{name}/", request)
    finally:
        os.close(subfolder)


def _entry(path: str, status: os.stat_result) -> FileEntry:
    return FileEntry(
        path=valid_text(path) or ".",
        kind=_kind(status.st_mode),
        size=min(status.st_size, MAX_WHOLE),
        mode=stat.S_IMODE(status.st_mode) & 0o777,
        modified_at=_modification_time(status.st_mtime),
    )


def _kind(mode: int) -> Literal["file", "folder", "symlink", "other"]:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def _modification_time(seconds: float) -> datetime | None:
    """The modification time, which may be any number; None if it is before 2000 or after 2199."""
    if not 946_684_800 <= seconds < 7_258_118_400:
        return None
    return datetime.fromtimestamp(seconds, UTC)


def _normalized(path: str) -> str:
    return "/".join(part for part in path.split("/") if part not in {"", "."})
