"""The work tree as it was last seen, and what has changed in it since. All of it blocks; it runs in a thread."""

import hashlib
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandherd_worker.diffs import MAX_DIFF_BYTES, Change, compare, is_binary
from sandherd_worker.ignore import Ignored

_KEPT_BYTES: Final = 256 * 1024 * 1024
"""What earlier contents may weigh together on the disk; files beyond it are seen to change, without a diff."""
_CLOCK_TICK_NS: Final = 50_000_000
"""A file that was read within this time of its last change may have changed again without a new time stamp."""

Signature = tuple[int, int, int, int]


@dataclass(slots=True)
class _Entry:
    signature: Signature
    digest: bytes | None
    """Of the content; None for a file too large to be read."""
    kept: bool
    """Whether the content is in the store."""
    sure: bool
    """Whether an equal signature means equal content."""


@dataclass(frozen=True)
class FileChange:
    """What happened to one file between two looks. Paths are relative, with forward slashes."""

    path: str
    kind: str
    """`created`, `modified`, `deleted` or `renamed`."""
    change: Change
    previous_path: str | None = None


@dataclass(frozen=True)
class _Seen:
    path: str
    before: bytes | None
    after: bytes | None
    digest: bytes | None
    kind: str
    note: str = ""


class WorkTree:
    """Compares a directory with what it was. Symbolic links are not followed; what they point to is their content."""

    def __init__(self, root: Path, store: Path) -> None:
        self._root = root
        self._store = store
        self._entries: dict[str, _Entry] = {}
        self._kept_bytes = 0
        self._gitignore: str | None = None
        self._ignored = Ignored()
        store.mkdir(mode=0o700, parents=True, exist_ok=True)

    def take_baseline(self) -> None:
        """What is there now is where changes are counted from."""
        self.changes()

    def changes(self) -> list[FileChange]:
        """What has changed since the last look, in the order of the paths."""
        self._read_gitignore()
        found = dict(self._walk())
        seen = [self._gone(path) for path in sorted(self._entries.keys() - found.keys())]
        seen += [change for path in sorted(found) if (change := self._look(path, found[path])) is not None]
        return list(_as_changes([one for one in seen if one is not None]))

    def passes_over(self, path: str) -> bool:
        """Whether nothing at this path, relative to the tree, is watched."""
        parts = path.split("/")
        prefixes = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
        return any(self._ignored(prefix, directory=prefix != path) for prefix in prefixes)

    def _read_gitignore(self) -> None:
        content = (_read(self._root / ".gitignore") or b"").decode("utf-8", "replace")
        if content != self._gitignore:
            self._gitignore, self._ignored = content, Ignored(content)

    def _walk(self) -> Iterator[tuple[str, Signature]]:
        waiting = [""]
        while waiting:
            directory = waiting.pop()
            try:
                entries = list(os.scandir(self._root / directory))
            except OSError:
                continue
            for entry in entries:
                path = f"{directory}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    waiting += [] if self._ignored(path, directory=True) else [f"{path}/"]
                elif not self._ignored(path, directory=False) and (signature := _signature(entry)) is not None:
                    yield path, signature

    def _look(self, path: str, signature: Signature) -> _Seen | None:
        known = self._entries.get(path)
        if known is not None and known.sure and known.signature == signature:
            return None
        before = self._load(path) if known is not None and known.kept else None
        content = _read(self._root / path) if signature[1] <= MAX_DIFF_BYTES else None
        entry = self._enter(path, signature, content)
        if known is None:
            return _Seen(path, None, content, entry.digest, "created", _note(content, signature))
        if entry.digest is not None and entry.digest == known.digest:
            return None
        if entry.digest is None and known.signature == signature:
            return None
        note = _note(content, signature) or ("" if known.kept else "no earlier copy was kept to compare with")
        return _Seen(path, before, content, entry.digest, "modified", note)

    def _gone(self, path: str) -> _Seen | None:
        known = self._entries.pop(path)
        before = self._load(path) if known.kept else None
        self._drop(path)
        if self.passes_over(path):
            return None
        return _Seen(path, before, None, known.digest, "deleted", "" if known.kept else "no earlier copy was kept")

    def _enter(self, path: str, signature: Signature, content: bytes | None) -> _Entry:
        digest = None if content is None else hashlib.blake2b(content, digest_size=16).digest()
        sure = time.time_ns() - signature[2] > _CLOCK_TICK_NS
        self._drop(path)
        kept = content is not None and self._keep(path, content)
        entry = self._entries[path] = _Entry(signature, digest, kept, sure)
        return entry

    def _keep(self, path: str, content: bytes) -> bool:
        if self._kept_bytes + len(content) > _KEPT_BYTES:
            return False
        try:
            self._place(path).write_bytes(content)
        except OSError:
            return False
        self._kept_bytes += len(content)
        return True

    def _load(self, path: str) -> bytes | None:
        return _read(self._place(path))

    def _drop(self, path: str) -> None:
        place = self._place(path)
        if place.exists():
            self._kept_bytes -= place.stat().st_size
            place.unlink()

    def _place(self, path: str) -> Path:
        return self._store / hashlib.blake2b(os.fsencode(path), digest_size=16).hexdigest()


def _as_changes(seen: list[_Seen]) -> Iterator[FileChange]:
    """What was seen, with a deletion and a creation of the same content told as a renaming."""
    gone = {one.digest: one for one in seen if one.kind == "deleted" and one.digest is not None and one.before}
    moved = {one.digest: one for one in seen if one.kind == "created" and one.digest in gone}
    for one in seen:
        if one.kind == "deleted" and one.digest in moved and gone[one.digest] is one:
            continue
        old = gone[one.digest] if one.digest is not None and moved.get(one.digest) is one else None
        yield _as_change(one, old)


def _as_change(one: _Seen, renamed_from: _Seen | None) -> FileChange:
    if renamed_from is not None:
        binary = is_binary(one.after or b"")
        return FileChange(one.path, "renamed", Change(binary, 0, 0, None, "the content is the same"), renamed_from.path)
    change = Change(False, 0, 0, None, one.note) if one.note else compare(one.path, one.before, one.after)
    return FileChange(one.path, one.kind, change)


def _note(content: bytes | None, signature: Signature) -> str:
    return "" if content is not None else f"not read: {signature[1]} bytes"


def _signature(entry: os.DirEntry[str]) -> Signature | None:
    """What changes when a file changes; None for what is neither a file nor a link."""
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ctime_ns, found.st_ino


def _read(path: Path) -> bytes | None:
    """The content, or what a link points to; None if it can't be read. Never waits, as a pipe would make it."""
    try:
        if path.is_symlink():
            return os.fsencode(path.readlink())
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        try:
            return file.read(MAX_DIFF_BYTES + 1)
        except OSError:
            return None
