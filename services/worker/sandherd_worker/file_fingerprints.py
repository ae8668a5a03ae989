"""Identifies files by signatures without reading them, even under another path, and reads contents.

No link is followed, and opening a pipe does not block.
"""

import hashlib
import os
import stat
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from sandherd_worker.file_diffs import MAX_DIFF_BYTES, Clean
from sandherd_worker.storable_text import valid_text


class RemovedFile(NamedTuple):
    """A file that no longer exists."""

    path: str
    signature: bytes
    digest: bytes
    """The digest of its content; empty if the content was not read."""


def renames(removed: Iterable[RemovedFile], new: Mapping[str, bytes], digest: Callable[[str], bytes]) -> dict[str, str]:
    """Maps the new path of each renamed file to its old path. `new` maps new paths to signatures.

    A removed file was renamed if a new path has the same file, or a file with the same content. To compare contents,
    only new files with the size of a removed file are read, by `digest`.
    """
    unmatched = {file.path: file for file in removed}
    path_of = {file.signature[:IDENTITY_BYTES]: file.path for file in unmatched.values()}
    same = {path: path_of[file] for path, signature in new.items() if (file := signature[:IDENTITY_BYTES]) in path_of}
    # If several new paths are links to the same file, only the first of them is its new path.
    same = {path: old for old, path in {old: path for path, old in sorted(same.items(), reverse=True)}.items()}
    for old in same.values():
        del unmatched[old]
    rest = {path: signature for path, signature in new.items() if path not in same}
    return same | _with_same_content(unmatched, rest, digest)


def _with_same_content(
    removed: Mapping[str, RemovedFile], new: Mapping[str, bytes], digest: Callable[[str], bytes]
) -> dict[str, str]:
    """Maps new paths to the paths of removed files with the same content. Empty files are not compared."""
    paths_by_content: dict[bytes, list[str]] = {}
    for file in sorted(removed.values()):
        if file.digest and size_of(file.signature) > 0:
            paths_by_content.setdefault(file.digest, []).append(file.path)
    sizes = {size_of(file.signature) for file in removed.values()} - {0}
    old_paths = {}
    for path, signature in sorted(new.items()):
        candidates = paths_by_content.get(digest(path), []) if size_of(signature) in sizes else []
        if candidates:
            old_paths[path] = candidates.pop(_index_of_same_name(path, candidates))
    return old_paths


def _index_of_same_name(path: str, candidates: list[str]) -> int:
    """The index of a path with the same file name; 0 if there is none."""
    name = path.rpartition("/")[2]
    return next((index for index, old in enumerate(candidates) if old.rpartition("/")[2] == name), 0)


IDENTITY_BYTES: Final = 24
"""The part of a signature that stays the same when a file is moved or its permissions change."""
_SIGNATURE: Final = struct.Struct("<qqQq")
"""The time of the last modification, the size, the inode, and the time of the last change of the inode."""
_HEAD_BYTES: Final = 8000


def signature_of(entry: os.DirEntry[str]) -> bytes | None:
    """A value that changes when the file changes; None if the entry is neither a file nor a link, or was removed."""
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
        return None
    return _SIGNATURE.pack(status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns)


def size_of(signature: bytes) -> int:
    """The size of the file in its signature, in bytes."""
    return int(_SIGNATURE.unpack(signature)[1])


def changed_at(signature: bytes) -> int:
    """When anything about the file last changed (ctime), in nanoseconds: programs can't set this time."""
    return int(_SIGNATURE.unpack(signature)[3])


def digest_of(content: bytes) -> bytes:
    """A digest of the content."""
    return hashlib.blake2b(content, digest_size=16).digest()


def published_digest(content: bytes | None, clean: Clean) -> str | None:
    """The SHA-256 of the content, in hexadecimal; None for a content that was not read.

    If the content contains a secret, this is the digest of the redacted text, because a short secret could be guessed
    from a digest of the original.
    """
    if content is None:
        return None
    text = content.decode("utf-8", "replace")
    cleaned = clean(text)
    # `clean` also replaces characters that can't be stored: if only these differ, there is no secret.
    hidden = cleaned != text and cleaned != valid_text(text)
    return hashlib.sha256(cleaned.encode("utf-8", "replace") if hidden else content).hexdigest()


def content_of(path: Path, signature: bytes) -> bytes | None:
    """The content, or a link's target; None if it is too large or can't be read."""
    return _read(path, MAX_DIFF_BYTES + 1) if size_of(signature) <= MAX_DIFF_BYTES else None


def head_of(path: Path) -> bytes:
    """The beginning of a file; empty if it can't be read."""
    return _read(path, _HEAD_BYTES) or b""


def _read(path: Path, limit: int) -> bytes | None:
    try:
        if path.is_symlink():
            return os.fsencode(path.readlink())
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        try:
            return file.read(limit)
        except OSError:
            return None
