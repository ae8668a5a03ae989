"""Copies the artifacts that events refer to into the artifact store, and removes those that no event refers to.

In one replica at a time. A content is written before the row that says so, and removed before that row is: interrupted
at any step, the next run does the step again.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import asyncpg
import nats.errors
import nats.js.errors

from event_ingest.artifacts.content_store import ContentStore
from event_ingest.artifacts.transport import IncompleteArtifactError, pieces_of, receive, spooled
from event_ingest.database import Connection, Database, classify_error
from event_ingest.storage.errors import StorageError
from sandherd.contracts.events.base import ArtifactRef
from sandherd.contracts.subjects import ARTIFACT
from sandherd.service.service import Service
from sandherd.telemetry import logs

_CHECK_SECONDS: Final = 15.0
_COLLECT_SECONDS: Final = 60.0
_LOCK: Final = 0x5A4D_4152_5446
_PORTION: Final = 100
_UNANSWERED: Final = (nats.errors.Error, nats.js.errors.Error)
_WAITING: Final = """
select project, owner, artifact, sha256, size, chunks, c.sha256 is not null as known
from artifacts a left join artifact_contents c using (project, sha256, size)
where a.stored_at is null and not lost and next_try_at <= now() order by next_try_at limit $1
"""
_KEY: Final = "where project = $1 and owner = $2 and artifact = $3 and sha256 = $4"
_STORED: Final = f"update artifacts set stored_at = now(), problem = null {_KEY}"  # noqa: S608  # our own text
_ADD_CONTENT: Final = """
insert into artifact_contents (project, sha256, size, bytes, encrypted) values ($1, $2, $3, $4, $5)
on conflict (project, sha256) do nothing
"""
_RETRY: Final = f"""
update artifacts set problem = $5, next_try_at = now() + interval '1 minute' {_KEY}
"""  # noqa: S608  # our own text
# A replica of the stream may lag behind its leader, so what is incomplete is read again for some time.
_INCOMPLETE: Final = f"""
update artifacts set problem = $5, lost = referred_at < now() - interval '10 minutes',
    next_try_at = now() + interval '1 minute' {_KEY} returning lost
"""  # noqa: S608  # our own text
_UNREFERRED: Final = """
delete from artifacts where day < current_date - 1 and to_regclass('events_' || to_char(day, 'YYYYMMDD')) is null
"""
_GARBAGE: Final = """
select project, sha256, encrypted from artifact_contents c
where not exists (select from artifacts a where a.project = c.project and a.sha256 = c.sha256) limit $1
"""
_FORGET: Final = "delete from artifact_contents where project = $1 and sha256 = $2"
_MEASURE: Final = """
select count(*) filter (where stored_at is null and not lost) as waiting,
    extract(epoch from now() - min(referred_at) filter (where stored_at is null and not lost)) as oldest
from artifacts where stored_at is null
"""
_BYTES: Final = "select coalesce(sum(bytes), 0)::bigint from artifact_contents"
_log: Final = logs.get("artifacts")


class ArtifactStorage:
    """The artifact store of event-ingest."""

    def __init__(
        self, service: Service, database: Database, store: ContentStore, referred: asyncio.Event, *, archived: bool
    ) -> None:
        """`referred` is set when there may be something to store; others store what this replica does not notice.

        `archived`: what is dropped is archived before, and so is still referred to.
        """
        self._service = service
        self._database = database
        self._store = store
        self._referred = referred
        self._archived = archived
        self._collected_at = float("-inf")

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            if await self._database.wait_available(_CHECK_SECONDS):
                await self._try()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_SECONDS):
                    await self._referred.wait()

    async def _try(self) -> None:
        self._referred.clear()
        try:
            async with self._database.locked(_LOCK) as alone, self._database.maintaining() as connection:
                if alone:
                    await self._work(connection)
        except _UNANSWERED as error:
            _log.warning("artifacts not stored, retrying", error=repr(error)[:200])
        except Exception as error:  # narrowed by `classify_error`; others are raised again
            if classify_error(error) is None and not isinstance(error, asyncpg.PostgresError):
                raise
            _log.warning("artifacts not stored, retrying", error=str(error)[:200])

    async def _work(self, connection: Connection) -> None:
        """Store what waits, and about once a minute remove what is not needed."""
        while await self.store_waiting(connection) == _PORTION:
            continue
        now = asyncio.get_running_loop().time()
        if now - self._collected_at >= _COLLECT_SECONDS:
            self._collected_at = now
            await self.collect_garbage(connection)
        await self._measure(connection)

    async def store_waiting(self, connection: Connection) -> int:
        """Store some of the artifacts that wait; returns how many were tried."""
        waiting: Sequence[Any] = await connection.fetch(_WAITING, _PORTION)
        for row in waiting:
            await self._store_one(connection, row)
        return len(waiting)

    async def _store_one(self, connection: Connection, row: Any) -> None:
        key = row["project"], row["owner"], row["artifact"], row["sha256"]
        try:
            if not row["known"]:
                stored = await self._copy(row)
                await connection.execute(_ADD_CONTENT, row["project"], row["sha256"], row["size"], *stored)
        except IncompleteArtifactError as error:
            lost = await connection.fetchval(_INCOMPLETE, *key, str(error))
            if lost:
                self._service.meters.count("sandherd_artifacts_lost_total")
                _log.warning("artifact incomplete, not stored", project=key[0], artifact=key[2], error=str(error))
        except StorageError as error:
            await connection.execute(_RETRY, *key, str(error))
            _log.error("artifact not stored, retrying", project=key[0], artifact=key[2], error=str(error))
        else:
            await connection.execute(_STORED, *key)
            self._service.meters.count("sandherd_artifacts_stored_total")

    async def _copy(self, row: Any) -> tuple[int, bool]:
        """Copy a content; returns the bytes that are stored, and whether they are encrypted."""
        project, sha256, size = row["project"], row["sha256"], row["size"]
        subject = ARTIFACT.fill(project=project, sandbox=row["owner"], artifact=row["artifact"])
        reference = ArtifactRef(
            artifact=row["artifact"], subject=subject, size=size, sha256=sha256, chunks=row["chunks"]
        )
        with spooled() as file:
            await receive(self._service.bus, reference, file)
            written = await asyncio.to_thread(self._store.write, project, sha256, pieces_of(file, size), size)
        return written, self._store.encrypts

    async def collect_garbage(self, connection: Connection) -> None:
        """Remove the artifacts of days that are dropped and not archived, and contents that no artifact has."""
        if not self._archived:
            await connection.execute(_UNREFERRED)
        removed = 0
        try:
            while rows := await connection.fetch(_GARBAGE, _PORTION):
                for row in rows:
                    await asyncio.to_thread(
                        self._store.delete, row["project"], row["sha256"], encrypted=row["encrypted"]
                    )
                    await connection.execute(_FORGET, row["project"], row["sha256"])
                removed += len(rows)
        except StorageError as error:
            _log.error("artifacts not removed, retrying", error=str(error))
        if removed:
            _log.info("artifacts removed", contents=removed)

    async def _measure(self, connection: Connection) -> None:
        row: Any = await connection.fetchrow(_MEASURE)
        self._service.meters.set("sandherd_artifacts_waiting", row["waiting"])
        self._service.meters.set("sandherd_artifacts_oldest_seconds", float(row["oldest"] or 0))
        self._service.meters.set("sandherd_artifact_store_bytes", await connection.fetchval(_BYTES))
