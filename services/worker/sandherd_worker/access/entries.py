"""What is in the folders of the work tree. It blocks; it runs in a thread."""

import json
import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, Literal

from sandherd.contracts.quantities import MAX_WHOLE
from sandherd.contracts.requests.access import FileEntry, FileList, ListFilesFields
from sandherd_worker.access.beneath import Beneath, opened, trouble
from sandherd_worker.sound import sound

_ANSWER_BYTES: Final = 192 * 1024
_ENTRY_BYTES: Final = 160
"""What an entry weighs beside its path."""


def list_files(beneath: Beneath, asked: ListFilesFields) -> FileList:
    """The entries of a folder, or the one file that the path names. Raises `ContractError`."""
    with beneath.place(asked.path) as (folder, name):
        prefix = _plain(asked.path)
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode):
                return FileList(entries=[_entry(prefix, found)])
            with opened(folder, name, asked.path) as inside:
                return _as_list(_walk(inside, f"{prefix}/" if prefix else "", asked), asked.limit)
        except OSError as error:
            raise trouble(asked.path, error) from None


def _as_list(found: Iterator[FileEntry], limit: int) -> FileList:
    """As many as may be asked for and as one answer carries."""
    entries: list[FileEntry] = []
    weight = 0
    for entry in found:
        weight += len(json.dumps(entry.path)) + _ENTRY_BYTES
        if len(entries) == limit or weight > _ANSWER_BYTES:
            return FileList(entries=entries, truncated=True)
        entries.append(entry)
    return FileList(entries=entries)


def _walk(folder: int, prefix: str, asked: ListFilesFields) -> Iterator[FileEntry]:
    """In the order of the paths; a folder that can't be read is told by its own entry alone."""
    for name in sorted(os.listdir(folder)):
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            continue
        yield _entry(f"{prefix}{name}", found)
        if asked.recursive and stat.S_ISDIR(found.st_mode):
            yield from _below(folder, name, prefix, asked)


def _below(folder: int, name: str, prefix: str, asked: ListFilesFields) -> Iterator[FileEntry]:
    try:
        inside = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return
    try:
        yield from _walk(inside, f"{prefix}{name}/", asked)
    finally:
        os.close(inside)


def _entry(path: str, found: os.stat_result) -> FileEntry:
    return FileEntry(
        path=sound(path) or ".",
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
    """When that was; None for a time that no envelope can carry: a file may claim any."""
    if not 946_684_800 <= seconds < 7_258_118_400:
        return None
    return datetime.fromtimestamp(seconds, UTC)


def _plain(path: str) -> str:
    return "/".join(part for part in path.split("/") if part not in {"", "."})
