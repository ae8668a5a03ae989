"""The work tree as it was last seen, and what has changed in it since. All of it blocks; it runs in a thread."""

import os
import re
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from sandherd_worker.diffs import Change, compare, is_binary
from sandherd_worker.earlier import NOWHERE, Earlier
from sandherd_worker.fingerprints import (
    IDENTITY_BYTES,
    changed_at,
    content_of,
    digest_of,
    head_of,
    signature_of,
    size_of,
)
from sandherd_worker.ignore import Ignored
from sandherd_worker.renames import Gone, renames

MOST_FILES: Final = 200_000
"""How many files are watched; of what is beyond, changes are not told."""
_KEPT_BYTES: Final = 256 * 1024 * 1024
"""What earlier contents may weigh together on the disk; files beyond it are seen to change, without a diff."""
_CLOCK_TICK_NS: Final = 50_000_000
"""A file that was read within this time of its last change may have changed again without a new time stamp."""
_ENTRY: Final = struct.Struct("<32s?Q")
_BEING_WRITTEN: Final = re.compile(r"\.tmp\.\d+\.[0-9a-f]{12}\Z")
"""How the name of a new file ends while Claude Code writes it; it is renamed when it is complete."""


class _Entry(NamedTuple):
    """What is known of a file. It is kept as bytes: there may be very many."""

    signature: bytes
    """What changes when a file changes; it begins with what stays when it is moved."""
    sure: bool
    """Whether an equal signature means equal content."""
    place: int
    """Where its content is among the earlier ones."""
    digest: bytes
    """Of the content; empty for a file that was not read."""

    def packed(self) -> bytes:
        return _ENTRY.pack(self.signature, self.sure, self.place) + self.digest

    def gone(self, path: str) -> Gone:
        return Gone(path, self.signature, self.digest)

    def has_content_of(self, other: "_Entry") -> bool:
        """Of a file that was not read this is said if it is the same one, not written to since."""
        if self.digest and other.digest:
            return self.digest == other.digest
        return self.signature[:IDENTITY_BYTES] == other.signature[:IDENTITY_BYTES]

    @classmethod
    def read(cls, packed: bytes) -> "_Entry":
        signature, sure, place = _ENTRY.unpack_from(packed)
        return cls(signature, sure, place, packed[_ENTRY.size :])


@dataclass(frozen=True)
class FileChange:
    """What happened to one file between two looks. Paths are relative, with forward slashes."""

    path: str
    kind: str
    """`created`, `modified`, `deleted` or `renamed`."""
    change: Change
    previous_path: str | None = None


@dataclass
class _Differences:
    """What is not as it was. The contents are not read yet."""

    gone: set[str]
    """What was not found again."""
    found: dict[str, bytes] = field(default_factory=dict)
    """The signatures of what is new or not surely the same."""


class WorkTree:
    """Compares a directory with what it was. Symbolic links are not followed; what they point to is their content."""

    def __init__(self, root: Path, store: Path) -> None:
        self._root = root
        self._entries: dict[str, bytes] = {}
        self._earlier = Earlier(store, _KEPT_BYTES)
        self._ignored = Ignored()
        self._unseen: list[str] = []
        self.too_many = False
        """Whether there were more files than are watched."""

    def take_baseline(self) -> None:
        """What is there now is where changes are counted from."""
        for path, signature in self._differences(last=True).found.items():
            self._enter(path, signature, content_of(self._root / path, signature))

    def changes(self, *, last: bool = False) -> Iterator[FileChange]:
        """What has changed since the last look: the deletions, then the rest, each in the order of the paths.

        Each is read when it is asked for; what is not asked for is found by the next look. A file that an agent is
        writing under a temporary name is reported under its final name, or by the `last` look if it was never renamed.
        """
        different = self._differences(last=last)
        moved = self._moved(different)
        for path in sorted(different.gone.difference(moved.values())):
            yield from self._gone(path)
        for path, signature in sorted(different.found.items()):
            yield from self._look(path, signature, moved.get(path))
        if self._earlier.wasteful:
            self._tidy()

    @property
    def unseen(self) -> str | None:
        """A directory that the last look could not read, if there was any: relative, `.` is the whole tree."""
        return self._unseen[0].rstrip("/") or "." if self._unseen else None

    def passes_over(self, path: str) -> bool:
        """Whether nothing at this path, relative to the tree, is watched."""
        return self._ignored.within(path)

    def close(self) -> None:
        """Let go of the earlier contents."""
        self._earlier.close()

    # --- looking

    def _differences(self, *, last: bool) -> _Differences:
        different = _Differences(set(self._entries))
        self._unseen.clear()
        for path, signature in self._walk():
            known = self._entries.get(path)
            different.gone.discard(path)
            if known is None and not last and _BEING_WRITTEN.search(path):
                continue
            if known is None and len(self._entries) + len(different.found) >= MOST_FILES:
                self.too_many = True
            elif known is None or not known.startswith(signature + b"\1"):
                different.found[path] = signature
        if self._unseen:
            unseen = tuple(self._unseen)
            different.gone = {path for path in different.gone if not path.startswith(unseen)}
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
        """What is in a directory. Of one that can't be read it is not said that all in it is gone."""
        try:
            with os.scandir(self._root / directory) as entries:
                return list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError:
            self._unseen.append(directory)
            return []

    # --- one file

    def _look(self, path: str, signature: bytes, moved_from: str | None) -> Iterator[FileChange]:
        content = content_of(self._root / path, signature)
        if content is None and not os.path.lexists(self._root / path):
            yield from self._gone(moved_from or path)
            return
        if moved_from is not None:
            self._entries[path] = self._entries.pop(moved_from)
        known = _Entry.read(self._entries[path]) if path in self._entries else None
        before = None if known is None else self._earlier.load(known.place)
        entry = self._enter(path, signature, content)
        same = known is not None and entry.has_content_of(known)
        if same and moved_from is None:
            return
        kind = "renamed" if moved_from else "created" if known is None else "modified"
        if same:
            change = Change(is_binary(self._head(path, content)), 0, 0, None, "the content is the same")
        elif content is None:
            change = Change(is_binary(self._head(path, None)), 0, 0, None, f"not read: {size_of(signature)} bytes")
        elif known is not None and before is None:
            change = Change(is_binary(content), 0, 0, None, "no earlier copy was kept to compare with")
        else:
            change = compare(path, before, content, previous=moved_from)
        yield FileChange(path, kind, change, moved_from)

    def _head(self, path: str, content: bytes | None) -> bytes:
        return head_of(self._root / path) if content is None else content

    def _gone(self, path: str) -> Iterator[FileChange]:
        packed = self._entries.pop(path, None)
        if packed is None:
            return
        known = _Entry.read(packed)
        before = self._earlier.load(known.place)
        self._earlier.drop(known.place)
        if self.passes_over(path):
            return
        change = Change(False, 0, 0, None, "no earlier copy was kept")
        yield FileChange(path, "deleted", change if before is None else compare(path, before, None))

    def _enter(self, path: str, signature: bytes, content: bytes | None) -> _Entry:
        """Remember the file as it is now."""
        known = _Entry.read(self._entries[path]) if path in self._entries else None
        digest = b"" if content is None else digest_of(content)
        sure = time.time_ns() - changed_at(signature) > _CLOCK_TICK_NS
        if known is not None and digest and known.digest == digest:
            entry = _Entry(signature, sure, known.place, digest)
        else:
            self._earlier.drop(NOWHERE if known is None else known.place)
            entry = _Entry(signature, sure, NOWHERE if content is None else self._earlier.keep(content), digest)
        self._entries[path] = entry.packed()
        return entry

    def _moved(self, different: _Differences) -> dict[str, str]:
        """The new paths of what was moved, each with its old one."""
        if not different.gone:
            return {}
        gone = [_Entry.read(self._entries[path]).gone(path) for path in different.gone]
        new = {path: signature for path, signature in different.found.items() if path not in self._entries}
        return renames(gone, new, lambda path: digest_of(content_of(self._root / path, new[path]) or b""))

    def _tidy(self) -> None:
        paths = list(self._entries)
        places = self._earlier.moved(_Entry.read(self._entries[path]).place for path in paths)
        for path, place in zip(paths, places, strict=True):
            self._entries[path] = _Entry.read(self._entries[path])._replace(place=place).packed()
