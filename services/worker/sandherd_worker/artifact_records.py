"""Artifacts for the stream ARTIFACTS. Each chunk is a spool record, before the event that refers to the artifact."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Final

from sandherd.contracts.chunks import CHUNK_BYTES, ArtifactBuilder
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.names import new_name
from sandherd_worker.spool_file import RecordKind, SpoolRecord

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"


@dataclass(frozen=True)
class Artifact:
    """The reference to an artifact, and the records with its chunks."""

    reference: ArtifactRef
    records: tuple[SpoolRecord, ...]


class ArtifactRecords:
    """Cuts a file into records one by one, and gives the reference once all are cut."""

    def __init__(self, project: str, sandbox: str, media_type: str) -> None:
        self._builder = ArtifactBuilder(project, sandbox, new_name("art"), media_type)

    def cut(self, file: IO[bytes]) -> Iterator[SpoolRecord]:
        """Records of up to `CHUNK_BYTES` each. An empty file is one empty record."""
        builder = self._builder
        while (chunk := file.read(CHUNK_BYTES)) or builder.chunks == 0:
            yield SpoolRecord(RecordKind.ARTIFACT, builder.subject, builder.add(chunk), chunk)

    def reference(self) -> ArtifactRef:
        """The reference to the artifact."""
        return self._builder.reference()


def make_artifact(content: bytes, project: str, sandbox: str, media_type: str = TEXT) -> Artifact:
    """The artifact with this content, cut into records of up to `CHUNK_BYTES` each."""
    parts = ArtifactRecords(project, sandbox, media_type)
    records = tuple(parts.cut(io.BytesIO(content)))
    return Artifact(parts.reference(), records)
