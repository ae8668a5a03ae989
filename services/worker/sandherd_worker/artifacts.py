"""Large bytes on their way to ARTIFACTS: cut into chunks, each a record of the spool, ahead of the event naming them.

The chunks of an artifact stand in order on its own subject. The message id of each is `<artifact>-<index>`, so that
a reader can drop one that was stored twice; size and digest are in the reference.
"""

import hashlib
from dataclasses import dataclass
from typing import Final

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
