"""How a file is known again without being read, and what is read of it. Nothing here follows a link or waits."""

import hashlib
import os
import stat
import struct
from pathlib import Path
from typing import Final

from sandherd_worker.diffs import MAX_DIFF_BYTES

SIGNATURE_BYTES: Final = 32
IDENTITY_BYTES: Final = 24
"""How much of a signature stays the same when a file is moved or gets other permissions."""
_SIGNATURE: Final = struct.Struct("<qqQq")
_HEAD: Final = 8000


def signature_of(entry: os.DirEntry[str]) -> bytes | None:
    """What changes when a file changes; None for what is neither a file nor a link, or is gone."""
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
        return None
    return _SIGNATURE.pack(found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns)


def size_of(signature: bytes) -> int:
    """The file's size then."""
    return int(_SIGNATURE.unpack(signature)[1])


def changed_at(signature: bytes) -> int:
    """When anything about the file last changed, in nanoseconds: nobody can set this time."""
    return int(_SIGNATURE.unpack(signature)[3])


def digest_of(content: bytes) -> bytes:
    """Equal for equal contents."""
    return hashlib.blake2b(content, digest_size=16).digest()


def content_of(path: Path, signature: bytes) -> bytes | None:
    """The content, or what a link points to; None if it is too large or can't be read."""
    return _read(path, MAX_DIFF_BYTES + 1) if size_of(signature) <= MAX_DIFF_BYTES else None


def head_of(path: Path) -> bytes:
    """The beginning of a file; nothing if it can't be read."""
    return _read(path, _HEAD) or b""


def _read(path: Path, most: int) -> bytes | None:
    try:
        if path.is_symlink():
            return os.fsencode(path.readlink())
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        try:
            return file.read(most)
        except OSError:
            return None
