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
_TEMPORARY_NAME: Final = re.compile(r"\.tmp\.\d+\.[0-9a-f]{12}\Z")
"""The suffix of a new file's name while Claude Code writes the file. A complete file is renamed."""


class _Entry(NamedTuple):
    """The recorded state of a file. Stored in packed form, because there may be very many."""

    signature: bytes
    """Changes when the file changes; the first `IDENTITY_BYTES` stay the same when the file is moved."""
    signature_is_reliable: bool
    """Whether the file is unchanged as long as its signature is."""
    location: int
    """Where the content is in the content store."""
    digest: bytes
    """The digest of the content; empty for a file that was not read."""

    def packed(self) -> bytes:
        return _ENTRY.pack(self.signature, self.signature_is_reliable, self.location) + self.digest

    def removed(self, path: str) -> RemovedFile:
        return RemovedFile(path, self.signature, self.digest)

    def has_content_of(self, other: "_Entry") -> bool:
        """Whether the contents are equal. If a file was not read, they are if both are the same, unmodified file."""
        if self.digest and other.digest:
            return self.digest == other.digest
        return self.signature[:IDENTITY_BYTES] == other.signature[:IDENTITY_BYTES]

    @classmethod
    def read(cls, packed: bytes) -> "_Entry":
        signature, is_reliable, location = _ENTRY.unpack_from(packed)
        return cls(signature, is_reliable, location, packed[_ENTRY.size :])


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
    changed: dict[str, bytes] = field(default_factory=dict)
    """The signatures of files that are new or possibly changed, by path."""


class WorkTree:
    """Compares a directory with its recorded state. Symbolic links are not followed; their content is their target."""

    def __init__(self, root: Path, store: Path, clean: Clean = str, see: See = unwatched) -> None:
        self._root, self._clean, self._see = root, clean, see
        self._entries: dict[str, bytes] = {}
        self._earlier_contents = ContentStore(store, _MAX_CONTENT_BYTES)
        self._ignored = IgnoreRules()
        self._unreadable: list[str] = []
        self.too_many = False
        """Whether there were more than `MAX_FILES` files."""

    def take_baseline(self) -> None:
        """Record the current state, with which the first scan for changes compares."""
        for path, signature in self._differences(last=True).changed.items():
            self._record(path, signature, content_of(self._root / path, signature))

    def changes(self, *, last: bool = False) -> Iterator[FileChange]:
        """Changes since the last scan: first deletions, then all others, both ordered by path.

        A file is read when its change is consumed; the next scan finds the changes that were not consumed. A file that
        is being written under a temporary name is reported under its final name, or by the `last` scan.
        """
        differences = self._differences(last=last)
        old_paths = self._old_paths(differences)
        for path in sorted(differences.missing.difference(old_paths.values())):
            yield from self._removals(path)
        for path, signature in sorted(differences.changed.items()):
            yield from self._changes_at(path, signature, old_paths.get(path))
        if self._earlier_contents.wasteful:
            self._compact()

    @property
    def unreadable(self) -> str | None:
        """The relative path of a directory that the last scan could not read (`.`: the whole tree), or None."""
        return self._unreadable[0].rstrip("/") or "." if self._unreadable else None

    def ignores(self, path: str) -> bool:
        """Whether changes at this path, relative to the tree, are ignored."""
        return self._ignored.within(path)

    def close(self) -> None:
        """Close the content store."""
        self._earlier_contents.close()

    # --- scanning

    def _differences(self, *, last: bool) -> _Differences:
        differences = _Differences(set(self._entries))
        self._unreadable.clear()
        for path, signature in self._walk():
            known = self._entries.get(path)
            differences.missing.discard(path)
            if known is None and not last and _TEMPORARY_NAME.search(path):
                continue
            if known is None and len(self._entries) + len(differences.changed) >= MAX_FILES:
                self.too_many = True
            elif known is None or not known.startswith(signature + b"\1"):  # `signature_is_reliable`, packed
                differences.changed[path] = signature
        if self._unreadable:
            unreadable = tuple(self._unreadable)
            differences.missing = {path for path in differences.missing if not path.startswith(unreadable)}
        return differences

    def _walk(self) -> Iterator[tuple[str, bytes]]:
        waiting = [("", False)]
        while waiting:
            directory, rules_changed = waiting.pop()
            entries = self._entries_of(directory)
            rules_changed |= self._ignored.read(self._root, directory.rstrip("/"), {entry.name for entry in entries})
            for entry in entries:
                path = f"{directory}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    waiting += [] if self._ignored(path, directory=True) else [(f"{path}/", rules_changed)]
                elif (not rules_changed and path in self._entries) or not self._ignored(path, directory=False):
                    signature = signature_of(entry)
                    if signature is not None:
                        yield path, signature

    def _entries_of(self, directory: str) -> list[os.DirEntry[str]]:
        """The entries of a directory; none if it can't be read: then its files are not reported as deleted."""
        self._see(directory)
        try:
            with os.scandir(self._root / directory) as entries:
                return list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError:
            self._unreadable.append(directory)
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
        before = None if known is None else self._earlier_contents.load(known.location)
        entry = self._record(path, signature, content)
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
        before = self._earlier_contents.load(known.location)
        self._earlier_contents.drop(known.location)
        if self.ignores(path):
            return
        change = FileDiff(False, 0, 0, None, "no earlier copy was stored")
        if before is not None:
            change = compare(path, before, None, clean=self._clean)
        yield FileChange(path, "deleted", change)

    def _record(self, path: str, signature: bytes, content: bytes | None) -> _Entry:
        """Record the file's current state."""
        known = _Entry.read(self._entries[path]) if path in self._entries else None
        digest = b"" if content is None else digest_of(content)
        is_reliable = time.time_ns() - changed_at(signature) > _CLOCK_TICK_NS
        if known is not None and digest and known.digest == digest:
            location = known.location
        else:
            self._earlier_contents.drop(NOWHERE if known is None else known.location)
            location = NOWHERE if content is None else self._earlier_contents.store(content)
        entry = _Entry(signature, is_reliable, location, digest)
        self._entries[path] = entry.packed()
        return entry

    def _old_paths(self, differences: _Differences) -> dict[str, str]:
        """Maps the new paths of moved files to their old paths."""
        if not differences.missing:
            return {}
        missing = [_Entry.read(self._entries[path]).removed(path) for path in differences.missing]
        new = {path: signature for path, signature in differences.changed.items() if path not in self._entries}
        return renames(missing, new, lambda path: digest_of(content_of(self._root / path, new[path]) or b""))

    def _compact(self) -> None:
        paths = list(self._entries)
        locations = self._earlier_contents.compacted(_Entry.read(self._entries[path]).location for path in paths)
        for path, location in zip(paths, locations, strict=True):
            self._entries[path] = _Entry.read(self._entries[path])._replace(location=location).packed()
