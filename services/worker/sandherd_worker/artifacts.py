"""Large bytes on their way to ARTIFACTS: cut into chunks, each a record of the spool, ahead of the event naming them.

The chunks of an artifact stand in order on its own subject. The message id of each is `<artifact>-<index>`, so that
a reader can drop one that was stored twice; size and digest are in the reference.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Final

from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.names import new_name
from sandherd.contracts.subjects import ARTIFACT
from sandherd_worker.spool_file import Kind, Record

CHUNK_BYTES: Final = 128 * 1024
TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"


@dataclass(frozen=True)
class Artifact:
    """A reference, and the records that it refers to."""

    reference: ArtifactRef
    records: tuple[Record, ...]


class Pieces:
    """A file on its way into the spool: its records one after the other, and the reference when all are cut."""

    def __init__(self, project: str, sandbox: str, media_type: str) -> None:
        self._name = new_name("art")
        self._subject = ARTIFACT.fill(project=project, sandbox=sandbox, artifact=self._name)
        self._media_type = media_type
        self._digest = hashlib.sha256()
        self._size = self._chunks = 0

    def cut(self, file: IO[bytes]) -> Iterator[Record]:
        """Records of at most `CHUNK_BYTES`; at least one, be it empty."""
        while (piece := file.read(CHUNK_BYTES)) or self._chunks == 0:
            self._digest.update(piece)
            self._size += len(piece)
            yield Record(Kind.ARTIFACT, self._subject, f"{self._name}-{self._chunks}", piece)
            self._chunks += 1

    def reference(self) -> ArtifactRef:
        """Where it is."""
        return ArtifactRef(
            artifact=self._name,
            subject=self._subject,
            size=self._size,
            sha256=self._digest.hexdigest(),
            chunks=self._chunks,
            media_type=self._media_type,
        )


def make_artifact(content: bytes, project: str, sandbox: str, media_type: str = TEXT) -> Artifact:
    """Cut the content into chunks of at most `CHUNK_BYTES`."""
    name = new_name("art")
    subject = ARTIFACT.fill(project=project, sandbox=sandbox, artifact=name)
    pieces = [content[start : start + CHUNK_BYTES] for start in range(0, len(content), CHUNK_BYTES)] or [b""]
    reference = ArtifactRef(
        artifact=name,
        subject=subject,
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        chunks=len(pieces),
        media_type=media_type,
    )
    records = (Record(Kind.ARTIFACT, subject, f"{name}-{index}", piece) for index, piece in enumerate(pieces))
    return Artifact(reference, tuple(records))
