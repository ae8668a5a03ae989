"""Packs the herd into pieces that fit in broker messages, and unpacks them. Pure; `snapshot_store` stores them."""

import hashlib
import zlib
from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from monitor.herd import Herd
from monitor.notices import Notice
from monitor.state import Key, SandboxActivity

VERSION: Final = 3
"""Of the shape of `SandboxActivity`. A snapshot of another version is ignored; the stream is read from its start."""
PIECE_BYTES: Final = 512 * 1024
MAX_BYTES: Final = 1024 * 1024 * 1024


class SnapshotError(Exception):
    """A snapshot that can't be used; the stream has everything that it had."""


class Manifest(BaseModel):
    """Which pieces form a snapshot, and its last event. Written last, so that it names only complete snapshots."""

    model_config = ConfigDict(frozen=True)

    version: int = VERSION
    position: Annotated[int, Field(ge=0)]
    generation: str
    pieces: Annotated[int, Field(ge=1, le=4096)]
    sha256: str
    sandboxes: int


class _Content(BaseModel):
    live: list[SandboxActivity]
    ended: list[Key]
    notices: list[Notice] = []


_CONTENT: Final = TypeAdapter(_Content)


def pack(herd: Herd, generation: str) -> tuple[Manifest, list[bytes]]:
    """The herd as a manifest and its pieces."""
    content = _Content.model_construct(
        live=list(herd.live.values()), ended=list(herd.ended), notices=list(herd.notices.values())
    )
    packed = zlib.compress(_CONTENT.dump_json(content), 1)
    pieces = [packed[start : start + PIECE_BYTES] for start in range(0, len(packed), PIECE_BYTES)]
    manifest = Manifest(
        position=herd.position,
        generation=generation,
        pieces=len(pieces),
        sha256=hashlib.sha256(packed).hexdigest(),
        sandboxes=len(herd.live),
    )
    return manifest, pieces


def unpack(manifest: Manifest, pieces: Sequence[bytes]) -> Herd:
    """The herd of a manifest and its pieces. Raises `SnapshotError` if they are incomplete or of another version."""
    packed = b"".join(pieces)
    if manifest.version != VERSION:
        raise SnapshotError(f"version {manifest.version}; this monitor reads version {VERSION}")
    if hashlib.sha256(packed).hexdigest() != manifest.sha256:
        raise SnapshotError("the checksum of its pieces does not match")
    try:
        content = _CONTENT.validate_json(zlib.decompressobj().decompress(packed, MAX_BYTES))
    except (zlib.error, ValidationError) as error:
        raise SnapshotError(f"{type(error).__name__}: invalid content") from error
    return Herd(manifest.position, content.live, content.ended, content.notices)
