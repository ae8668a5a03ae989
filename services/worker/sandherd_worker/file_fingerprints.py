"""Identifies files by signatures without reading them, also under another path, and reads contents.

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
    """The digest of its content; empty if that was not read."""


def renames(removed: Iterable[RemovedFile], new: Mapping[str, bytes], digest: Callable[[str], bytes]) -> dict[str, str]:
    """Maps each renamed new path to its old one; `new` maps new paths to signatures.

    A renamed file is the same file, or one with the same content. Only new files with a removed file's size are read.
    """
    left = {one.path: one for one in removed}
    files = {one.signature[:IDENTITY_BYTES]: one.path for one in left.values()}
    found = {path: files[mark] for path, signature in new.items() if (mark := signature[:IDENTITY_BYTES]) in files}
    found = {path: old for old, path in {old: path for path, old in sorted(found.items(), reverse=True)}.items()}
    for old in found.values():
        del left[old]
    return found | _alike(left, {path: signature for path, signature in new.items() if path not in found}, digest)


def _alike(left: Mapping[str, RemovedFile], new: Mapping[str, bytes], digest: Callable[[str], bytes]) -> dict[str, str]:
    contents: dict[bytes, list[str]] = {}
    for one in sorted(left.values()):
        if one.digest and size_of(one.signature) > 0:
            contents.setdefault(one.digest, []).append(one.path)
    sizes = {size_of(one.signature) for one in left.values()} - {0}
    found = {}
    for path, signature in sorted(new.items()):
        olds = contents.get(digest(path), []) if size_of(signature) in sizes else []
        if olds:
            found[path] = olds.pop(_nearest(path, olds))
    return found


def _nearest(path: str, olds: list[str]) -> int:
    """Among several files of the same content, the index of one with the same name, otherwise 0."""
    name = path.rpartition("/")[2]
    return next((index for index, old in enumerate(olds) if old.rpartition("/")[2] == name), 0)


IDENTITY_BYTES: Final = 24
"""The part of a signature that stays the same when a file is moved or its permissions change."""
_SIGNATURE: Final = struct.Struct("<qqQq")
_HEAD: Final = 8000


def signature_of(entry: os.DirEntry[str]) -> bytes | None:
    """Changes when the file changes; None for what is neither a file nor a link, or has been removed."""
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
        return None
    return _SIGNATURE.pack(found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns)


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

    If the content contains a secret, this is the digest of the redacted text: a short secret could be guessed.
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
    return _read(path, _HEAD) or b""


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
