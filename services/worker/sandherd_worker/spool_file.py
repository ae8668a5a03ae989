"""The spool's file format: how records are written, and read from a file that may end with an incomplete record.

A record begins with the length and the CRC-32 of its body (4 bytes each, big-endian). The body is the kind, the marks,
the sequence number, the lengths of subject and message id, and then the subject, the message id and the payload. Zeros
may follow the last record.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Final, NamedTuple

_FRAME: Final = struct.Struct(">II")
_HEAD: Final = struct.Struct(">BBIHB")
_MAX_BODY_BYTES: Final = 16 * 1024 * 1024
_SUFFIX: Final = ".log"


class RecordKind(IntEnum):
    """What a record carries."""

    EVENT = 1
    ARTIFACT = 2
    OUTPUT = 3


class RecordMark(IntFlag):
    """Properties of a record that must be known even after it is deleted from the spool."""

    NONE = 0
    TERMINAL = 1
    """The event that ends the attempt."""
    LAST_EVENT = 2
    """The last event of this source."""


class SpoolRecord(NamedTuple):
    """One message waiting for the broker. `sequence` is 0 if it is not an event."""

    kind: RecordKind
    subject: str
    msg_id: str
    payload: bytes
    sequence: int = 0
    mark: RecordMark = RecordMark.NONE


@dataclass(frozen=True, slots=True)
class SegmentScan:
    """The content of a segment: its records, the offset `end` of the last complete one, and `torn`, the bytes after it.

    Zeros at the end of the file are not counted in `torn`: later records would have overwritten them.
    """

    records: list[SpoolRecord]
    end: int
    torn: int


# Tables, because a call of an `enum` class takes longer than reading the rest of a record.
_KINDS_BY_NUMBER: Final = {kind.value: kind for kind in RecordKind}
_MARKS_BY_NUMBER: Final = {number: RecordMark(number) for number in range(4)}


def encode(record: SpoolRecord) -> bytes:
    """The record as bytes in the file's format."""
    subject, msg_id = record.subject.encode(), record.msg_id.encode()
    head = _HEAD.pack(record.kind, record.mark, record.sequence, len(subject), len(msg_id))
    body = b"".join((head, subject, msg_id, record.payload))
    return _FRAME.pack(len(body), zlib.crc32(body)) + body


def decode(data: bytes, offset: int = 0) -> tuple[SpoolRecord, int] | None:
    """The record at `offset` and the offset of the next one; None if there is no complete and intact one."""
    start = offset + _FRAME.size
    if len(data) < start:
        return None
    length, checksum = _FRAME.unpack_from(data, offset)
    body = data[start : start + length]
    if not _HEAD.size <= length <= _MAX_BODY_BYTES or len(body) < length or zlib.crc32(body) != checksum:
        return None
    return _read_body(body), start + length


def needed(data: bytes, offset: int) -> int:
    """How many bytes the record at `offset` takes, frame included; the frame's size if even that is incomplete."""
    if len(data) < offset + _FRAME.size:
        return _FRAME.size
    length: int = _FRAME.unpack_from(data, offset)[0]
    return _FRAME.size + length


def _read_body(body: bytes) -> SpoolRecord:
    kind, mark, sequence, subject_length, id_length = _HEAD.unpack_from(body)
    subject_end = _HEAD.size + subject_length
    id_end = subject_end + id_length
    return SpoolRecord(
        kind=_KINDS_BY_NUMBER.get(kind) or RecordKind(kind),
        subject=body[_HEAD.size : subject_end].decode(),
        msg_id=body[subject_end:id_end].decode(),
        payload=body[id_end:],
        sequence=sequence,
        mark=_MARKS_BY_NUMBER[mark] if mark in _MARKS_BY_NUMBER else RecordMark(mark),
    )


def scan(data: bytes) -> SegmentScan:
    """All complete records from the beginning."""
    records, offset = [], 0
    while (found := decode(data, offset)) is not None:
        record, offset = found
        records.append(record)
    return SegmentScan(records, offset, len(data[offset:].rstrip(b"\0")))


def segment_path(directory: Path, first: int) -> Path:
    """The path of the segment whose first record has this number."""
    return directory / f"{first:020d}{_SUFFIX}"


def segments(directory: Path) -> Iterator[tuple[int, Path]]:
    """The segments in a directory, in order, each with the number of its first record."""
    for path in sorted(directory.glob(f"*{_SUFFIX}")):
        yield int(path.stem), path
