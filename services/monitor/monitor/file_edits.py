"""The files that a sandbox has edited, with the edited lines and the number of edits. Pure.

They are folded from `agent.file_edited`, and stored as bytes, because the monitor holds them in memory for every
sandbox: a file takes about 60 bytes and its path.
"""

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from monitor.facts import ObservedEvent
from sandherd.contracts.events.tools import AgentFileEdited
from sandherd.contracts.records import MAX_EDITS, MAX_RANGES

MAX_BYTES: Final = 6 * 1024
"""Maximum size of all edits of a sandbox, in bytes. If there are more, the oldest are dropped."""
MAX_PATH: Final = 512
"""Maximum size of a path, in bytes. A file with a longer path is left out."""
_MAX_LINE: Final = 2**32 - 1
_MAX_COUNT: Final = 2**16 - 1
_HEADER: Final = struct.Struct("<HIHB?")
"""The size of the path, the time in seconds since 1970, the numbers of edits and of ranges, and whether a digest
follows."""
_RANGE: Final = struct.Struct("<II")
_DIGEST_BYTES: Final = 32
_HUNK: Final = re.compile(r"@@ -\d+(?:,\d+)? \+(\d+)(?:,\d+)? @@")
Range = tuple[int, int]
"""The first and the last line."""


@dataclass(frozen=True, slots=True)
class FileEdit:
    """An edited file. `ranges` are its edited lines, counted from 1; the first and the last line are included."""

    path: str
    digest: bytes | None
    """The SHA-256 of the file's content."""
    ranges: tuple[Range, ...]
    at: datetime
    count: int


def after_edit(packed: bytes, event: ObservedEvent) -> bytes:
    """The edits after an event; the same object if the event is not an edit."""
    data = event.data
    if not isinstance(data, AgentFileEdited):
        return packed
    edits = {edit.path: edit for edit in unpack(packed)}
    renamed_edit = edits.pop(data.previous_path, None) if data.previous_path is not None else None
    earlier = edits.pop(data.file_path, renamed_edit)
    digest = bytes.fromhex(data.content_sha256) if data.content_sha256 else None
    ranges = merge_ranges((*(earlier.ranges if earlier else ()), *ranges_of(data.full_diff or data.diff_preview)))
    count = min(_MAX_COUNT, earlier.count + 1 if earlier else 1)
    edits[data.file_path] = FileEdit(data.file_path, digest, ranges, event.at, count)
    return pack(edits.values())


def pack(edits: Iterable[FileEdit]) -> bytes:
    """The last of these edits, packed: as many as `MAX_BYTES` and `MAX_EDITS` permit."""
    pieces: list[bytes] = []
    size = 0
    for edit in reversed(list(edits)):
        path = edit.path.encode()
        if len(path) > MAX_PATH:
            continue
        header = _HEADER.pack(
            len(path), int(edit.at.timestamp()), edit.count, len(edit.ranges), edit.digest is not None
        )
        ranges = b"".join(_RANGE.pack(*edited_range) for edited_range in edit.ranges)
        piece = b"".join((header, path, edit.digest or b"", ranges))
        size += len(piece)
        if size > MAX_BYTES or len(pieces) >= MAX_EDITS:
            break
        pieces.append(piece)
    return b"".join(reversed(pieces))


def unpack(packed: bytes) -> Iterator[FileEdit]:
    """The edits, oldest first."""
    offset = 0
    while offset < len(packed):
        length, seconds, count, range_count, has_digest = _HEADER.unpack_from(packed, offset)
        offset += _HEADER.size
        path = packed[offset : offset + length].decode()
        offset += length
        digest = packed[offset : offset + _DIGEST_BYTES] if has_digest else None
        offset += _DIGEST_BYTES if has_digest else 0
        end = offset + range_count * _RANGE.size
        edited_ranges = tuple((first, last) for first, last in _RANGE.iter_unpack(packed[offset:end]))
        offset = end
        yield FileEdit(path, digest, edited_ranges, datetime.fromtimestamp(seconds, UTC), count)


def ranges_of(diff: str) -> Iterator[Range]:
    """The ranges of lines that a unified diff changes, by their numbers in the new text.

    If lines are only removed, the line before them counts as changed.
    """
    line: int | None = None
    added: list[int] = []
    removed = False
    for text in diff.split("\n"):
        sign, hunk = text[:1], _HUNK.match(text)
        if sign not in {"+", "-", "\\"} and line is not None:
            yield from _changed_range(added, line, removed=removed)
            added, removed = [], False
        if hunk:
            line = min(int(hunk[1][:10]), _MAX_LINE)
        elif line is not None and sign == "+":
            added.append(line)
        removed = removed or (line is not None and sign == "-")
        if line is not None and not hunk and sign in {"+", " "}:
            line = min(line + 1, _MAX_LINE)
    if line is not None:
        yield from _changed_range(added, line, removed=removed)


def _changed_range(added: list[int], line: int, *, removed: bool) -> Iterator[Range]:
    if added:
        yield added[0], added[-1]
    elif removed:
        yield max(1, line - 1), max(1, line - 1)


def merge_ranges(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """The ranges in order, without overlaps. If there are more than `MAX_RANGES`, the nearest ones are joined."""
    result: list[Range] = []
    for first, last in sorted(ranges):
        if result and first <= result[-1][1] + 1:
            result[-1] = result[-1][0], max(last, result[-1][1])
        else:
            result.append((first, last))
    if len(result) <= MAX_RANGES:
        return tuple(result)
    by_gap = sorted(range(1, len(result)), key=lambda index: result[index - 1][1] - result[index][0])
    starts = [0, *sorted(by_gap[: MAX_RANGES - 1]), len(result)]
    return tuple((result[start][0], result[end - 1][1]) for start, end in pairwise(starts))
