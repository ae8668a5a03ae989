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

_ANSWER_BYTES: Final = 192 * 1024
_ENTRY_BYTES: Final = 160
"""Estimated size of an entry without its path, in bytes."""


def list_files(tree: WorkTreePaths, request: ListFilesFields) -> FileList:
    """The entries of a folder, or the one file that the path names. Raises `ContractError`."""
    with tree.open_parent(request.path) as (folder, name):
        prefix = _plain(request.path)
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode):
                return FileList(entries=[_entry(prefix, found)])
            with opened(folder, name, request.path) as inside:
                return _as_list(_walk(inside, f"{prefix}/" if prefix else "", request), request.limit)
        except OSError as error:
            raise path_error(request.path, error) from None


def _as_list(found: Iterator[FileEntry], limit: int) -> FileList:
    """The first entries, up to the limit or to the maximum size of one reply."""
    entries: list[FileEntry] = []
    weight = 0
    for entry in found:
        weight += len(json.dumps(entry.path)) + _ENTRY_BYTES
        if len(entries) == limit or weight > _ANSWER_BYTES:
            return FileList(entries=entries, truncated=True)
        entries.append(entry)
    return FileList(entries=entries)


def _walk(folder: int, prefix: str, request: ListFilesFields) -> Iterator[FileEntry]:
    """The entries, sorted by name in each folder. Of a folder that can't be read, there is only its own entry."""
    for name in sorted(os.listdir(folder)):
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            continue
        yield _entry(f"{prefix}{name}", found)
        if request.recursive and stat.S_ISDIR(found.st_mode):
            yield from _below(folder, name, prefix, request)


def _below(folder: int, name: str, prefix: str, request: ListFilesFields) -> Iterator[FileEntry]:
    try:
        inside = os.open(name, READ_DIRECTORY, dir_fd=folder)
    except OSError:
        return
    try:
        yield from _walk(inside, f"{prefix}{name}/", request)
    finally:
        os.close(inside)


def _entry(path: str, found: os.stat_result) -> FileEntry:
    return FileEntry(
        path=valid_text(path) or ".",
        kind=_kind(found.st_mode),
        size=min(found.st_size, MAX_WHOLE),
        mode=stat.S_IMODE(found.st_mode) & 0o777,
        modified_at=_moment(found.st_mtime),
    )


def _kind(mode: int) -> Literal["file", "folder", "symlink", "other"]:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def _moment(seconds: float) -> datetime | None:
    """The modification time, which may be any number; None if it is before 2000 or after 2199."""
    if not 946_684_800 <= seconds < 7_258_118_400:
        return None
    return datetime.fromtimestamp(seconds, UTC)


def _plain(path: str) -> str:
    return "/".join(part for part in path.split("/") if part not in {"", "."})
