"""`stored_artifact`: reads a chunk of an artifact that its stream no longer has. The spawner requests it."""

import asyncio
from typing import Any, Final

from event_ingest.artifacts.content_store import ContentStore
from event_ingest.database import Database
from event_ingest.storage.errors import StorageError, StorageFault
from sandherd.contracts.chunks import chunk_count
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import ArtifactPiece, ReadStoredArtifact
from sandherd.service.service import IncomingRequest

_FIND: Final = """
select sha256, c.size, encrypted from artifacts a join artifact_contents c using (project, sha256)
where project = $1 and owner = $2 and artifact = $3 and a.stored_at is not null order by a.referred_at limit 1
"""


class StoredArtifacts:
    """Reads chunks of artifacts from the artifact store."""

    def __init__(self, database: Database, store: ContentStore | None) -> None:
        self._database = database
        self._store = store

    async def read(self, incoming: IncomingRequest[ReadStoredArtifact]) -> ArtifactPiece:
        """The requested chunk.

        Raises `ContractError`: `not_found` if the store does not have it, `unavailable`, or `conflict` if it can't be
        read.
        """
        request = incoming.request
        row: Any = None
        if self._store is not None:
            async with self._database.reading() as connection:
                row = await connection.fetchrow(_FIND, incoming.project, request.owner, request.artifact)
        if self._store is None or row is None or request.index >= chunk_count(row["size"]):
            text = f"the artifact store has no chunk {request.index} of {request.artifact}"
            raise ContractError(Code.NOT_FOUND, text, field="artifact")
        content = incoming.project, row["sha256"], request.index, row["size"]
        try:
            data = await asyncio.to_thread(self._store.read_chunk, *content, encrypted=row["encrypted"])
        except StorageError as error:
            raise _refusal(error) from error
        return ArtifactPiece(data=data, index=request.index, after=request.index + 1)


def _refusal(error: StorageError) -> ContractError:
    unavailable = error.fault in (StorageFault.UNREACHABLE, StorageFault.DENIED)
    text, _, remedy = str(error).partition("; ")
    return ContractError(Code.UNAVAILABLE if unavailable else Code.CONFLICT, text, remedy=remedy)
