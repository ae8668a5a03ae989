"""A request between services for an artifact that is in the artifact store and no longer in its stream."""

from typing import ClassVar

from pydantic import BaseModel

from sandherd.contracts.model import Count
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.access import ArtifactPiece
from sandherd.contracts.requests.base import Request


class ReadStoredArtifact(Request[ArtifactPiece]):
    """Return a chunk of an artifact from the artifact store; `after` of the reply is the index of the next chunk."""

    Answer: ClassVar[type[BaseModel]] = ArtifactPiece
    type: ClassVar[str] = "event-ingest.stored_artifact"
    owner: SafeName
    """The sandbox or task that the artifact belongs to."""
    artifact: SafeName
    index: Count = 0
