"""The last seen state of the work tree, and the changes since. All functions block, and run in a thread."""

import os
import re
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from sandherd.archives.ignore import IgnoreRules
from sandherd_worker.content_store import NOWHERE, ContentStore
from sandherd_worker.file_diffs import Clean, FileDiff, compare, is_binary
from sandherd_worker.file_fingerprints import (
    IDENTITY_BYTES,
    RemovedFile,
    changed_at,
    content_of,
    digest_of,
    head_of,
    published_digest,
    renames,
    signature_of,
    size_of,
)
from sandherd_worker.work_tree_watch import See, unwatched

MAX_FILES: Final = 200_000
"""Maximum number of watched files; changes of further files are not reported."""
_MAX_CONTENT_BYTES: Final = 256 * 1024 * 1024
"""Maximum size of earlier contents on disk; files beyond it are reported as changed, without a diff."""
_CLOCK_TICK_NS: Final = 50_000_000
"""A file that was read within this time of its last change may have changed again without a new time stamp."""
_ENTRY: Final = struct.Struct("<32s?Q")
_BEING_WRITTEN: Final = re.compile(r"\.tmp\.\d+\.[0-9a-f]{12}\Z")
"""The suffix of a new file's name while Claude Code writes it; it is renamed when it is complete."""


class _Entry(NamedTuple):
    """The recorded state of a file. Stored as bytes: there may be very many."""

    signature: bytes
    """Changes when a file changes; begins with the part that survives a move."""
    sure: bool
    """Whether an equal signature means equal content."""
    place: int
    """The place of the content in the content store."""
    digest: bytes
    """The digest of the content; empty for a file that was not read."""

    def packed(self) -> bytes:
        return _ENTRY.pack(self.signature, self.sure, self.place) + self.digest

    def removed(self, path: str) -> RemovedFile:
        return RemovedFile(path, self.signature, self.digest)

    def has_content_of(self, other: "_Entry") -> bool:
        """Whether the content is equal. Files that were not read are equal if they are the same file, unmodified."""
        if self.digest and other.digest:
            return self.digest == other.digest
        return self.signature[:IDENTITY_BYTES] == other.signature[:IDENTITY_BYTES]

    @classmethod
    def read(cls, packed: bytes) -> "_Entry":
        signature, sure, place = _ENTRY.unpack_from(packed)
        return cls(signature, sure, place, packed[_ENTRY.size :])


@dataclass(frozen=True)
class FileChange:
    """The change of one file between two scans. Paths are relative, with forward slashes."""

    path: str
    kind: str
    """`created`, `modified`, `deleted` or `renamed`."""
    change: FileDiff
    previous_path: str | None = None
    sha256: str | None = None


@dataclass
class _Differences:
    """Files that differ from the recorded state. The contents are not read yet."""

    missing: set[str]
    """Recorded paths that were not found."""
    found: dict[str, bytes] = field(default_factory=dict)
    """The signatures of files that are new or possibly changed."""


class WorkTree:
    """Compares a directory with its recorded state. Symbolic links are not followed; their content is their target."""

    def __init__(self, root: Path, store: Path, clean: Clean = str, see: See = unwatched) -> None:
        self._root, self._clean, self._see = root, clean, see
        self._entries: dict[str, bytes] = {}
        self._earlier = ContentStore(store, _MAX_CONTENT_BYTES)
        self._ignored = IgnoreRules()
        self._unseen: list[str] = []
        self.too_many = False
        """Whether there were more files than are watched."""

    def take_baseline(self) -> None:
        """Record the current state; changes are counted from it."""
        for path, signature in self._differences(last=True).found.items():
            self._enter(path, signature, content_of(self._root / path, signature))

    def changes(self, *, last: bool = False) -> Iterator[FileChange]:
        """Changes since the last scan: the deletions, then the rest, each in the order of the paths.

        Each file is read when its change is consumed; what is not consumed is found by the next scan. A file that an
        agent is writing under a temporary name is reported under its final name, or by the `last` scan if it was never
        renamed.
        """
        different = self._differences(last=last)
        moved = self._moved(different)
        for path in sorted(different.missing.difference(moved.values())):
            yield from self._removals(path)
        for path, signature in sorted(different.found.items()):
            yield from self._changes_at(path, signature, moved.get(path))
        if self._earlier.wasteful:
            self._compact()

    @property
    def unseen(self) -> str | None:
        """A directory that the last scan could not read, or None: relative, `.` is the whole tree."""
        return self._unseen[0].rstrip("/") or "." if self._unseen else None

    def ignores(self, path: str) -> bool:
        """Whether changes at this path, relative to the tree, are ignored."""
        return self._ignored.within(path)

    def close(self) -> None:
        """Close the content store."""
        self._earlier.close()

    # --- scanning

    def _differences(self, *, last: bool) -> _Differences:
        different = _Differences(set(self._entries))
        self._unseen.clear()
        for path, signature in self._walk():
            known = self._entries.get(path)
            different.missing.discard(path)
            if known is None and not last and _BEING_WRITTEN.search(path):
                continue
            if known is None and len(self._entries) + len(different.found) >= MAX_FILES:
                self.too_many = True
            elif known is None or not known.startswith(signature + b"\1"):
                different.found[path] = signature
        if self._unseen:
            unseen = tuple(self._unseen)
            different.missing = {path for path in different.missing if not path.startswith(unseen)}
        return different

    def _walk(self) -> Iterator[tuple[str, bytes]]:
        waiting = [("", False)]
        while waiting:
            directory, stale = waiting.pop()
            entries = self._entries_of(directory)
            stale |= self._ignored.read(self._root, directory.rstrip("/"), {entry.name for entry in entries})
            for entry in entries:
                path = f"{directory}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    waiting += [] if self._ignored(path, directory=True) else [(f"{path}/", stale)]
                elif (not stale and path in self._entries) or not self._ignored(path, directory=False):
                    signature = signature_of(entry)
                    if signature is not None:
                        yield path, signature

    def _entries_of(self, directory: str) -> list[os.DirEntry[str]]:
        """The entries of a directory. If it can't be read, its files are not reported as deleted."""
        self._see(directory)
        try:
            with os.scandir(self._root / directory) as entries:
                return list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError:
            self._unseen.append(directory)
            return []

    # --- one file

    def _changes_at(self, path: str, signature: bytes, moved_from: str | None) -> Iterator[FileChange]:
        content = content_of(self._root / path, signature)
        if content is None and not os.path.lexists(self._root / path):
            yield from self._removals(moved_from or path)
            return
        if moved_from is not None:
            self._entries[path] = self._entries.pop(moved_from)
        known = _Entry.read(self._entries[path]) if path in self._entries else None
        before = None if known is None else self._earlier.load(known.place)
        entry = self._enter(path, signature, content)
        same = known is not None and entry.has_content_of(known)
        if same and moved_from is None:
            return
        head = head_of(self._root / path) if content is None else content
        kind = "renamed" if moved_from else "created" if known is None else "modified"
        if same:
            change = FileDiff(is_binary(head), 0, 0, None, "the content is the same")
        elif content is None:
            change = FileDiff(is_binary(head), 0, 0, None, f"not read: {size_of(signature)} bytes")
        elif known is not None and before is None:
            change = FileDiff(is_binary(content), 0, 0, None, "no earlier copy was stored to compare with")
        else:
            change = compare(path, before, content, previous=moved_from, clean=self._clean)
        yield FileChange(path, kind, change, moved_from, published_digest(content, self._clean))

    def _removals(self, path: str) -> Iterator[FileChange]:
        packed = self._entries.pop(path, None)
        if packed is None:
            return
        known = _Entry.read(packed)
        before = self._earlier.load(known.place)
        self._earlier.drop(known.place)
        if self.ignores(path):
            return
        change = FileDiff(False, 0, 0, None, "no earlier copy was stored")
        if before is not None:
            change = compare(path, before, None, clean=self._clean)
        yield FileChange(path, "deleted", change)

    def _enter(self, path: str, signature: bytes, content: bytes | None) -> _Entry:
        """Record the file's current state."""
        known = _Entry.read(self._entries[path]) if path in self._entries else None
        digest = b"" if content is None else digest_of(content)
        sure = time.time_ns() - changed_at(signature) > _CLOCK_TICK_NS
        if known is not None and digest and known.digest == digest:
            entry = _Entry(signature, sure, known.place, digest)
        else:
            self._earlier.drop(NOWHERE if known is None else known.place)
            entry = _Entry(signature, sure, NOWHERE if content is None else self._earlier.store(content), digest)
        self._entries[path] = entry.packed()
        return entry

    def _moved(self, different: _Differences) -> dict[str, str]:
        """Maps the new paths of moved files to their old ones."""
        if not different.missing:
            return {}
        missing = [_Entry.read(self._entries[path]).removed(path) for path in different.missing]
        new = {path: signature for path, signature in different.found.items() if path not in self._entries}
        return renames(missing, new, lambda path: digest_of(content_of(self._root / path, new[path]) or b""))

    def _compact(self) -> None:
        paths = list(self._entries)
        places = self._earlier.moved(_Entry.read(self._entries[path]).place for path in paths)
        for path, place in zip(paths, places, strict=True):
            self._entries[path] = _Entry.read(self._entries[path])._replace(place=place).packed()
