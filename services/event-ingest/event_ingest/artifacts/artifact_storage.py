"""Copies the artifacts that events refer to into the artifact store, and removes those that no event refers to.

It runs in one replica at a time. A content is written before its row is inserted, and removed before its row is
deleted. So if a run is interrupted, the next run repeats the step.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import asyncpg

from event_ingest.artifacts.artifact_stream import (
    IncompleteArtifactError,
    WrongContentError,
    artifact_file,
    chunks_of,
    receive,
)
from event_ingest.artifacts.content_store import ContentStore
from event_ingest.artifacts.project_limit import ProjectLimit, mark_over_limit
from event_ingest.database import Connection, Database, classify_error
from event_ingest.storage.errors import StorageError, StorageFault
from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.contracts.events.base import ArtifactRef
from sandherd.contracts.subjects import ARTIFACT
from sandherd.service.service import Service
from sandherd.telemetry import logs

_CHECK_SECONDS: Final = 15.0  # maximum interval of searching for waiting artifacts
_COLLECT_SECONDS: Final = 60.0  # interval of removing unused contents
LOCK_ID: Final = 0x5A4D_4152_5446
"""The advisory lock of the replica that stores and removes artifacts."""
_PORTION_ROWS: Final = 100
_PAUSE_SECONDS: Final = 1.0  # between two portions
GAUGES: Final = (
    "sandherd_artifacts_waiting",
    "sandherd_artifacts_over_limit",
    "sandherd_artifacts_oldest_seconds",
    "sandherd_artifact_store_bytes",
)
"""Exported by the replica that has the lock."""
_STORE_FAULTS: Final = frozenset(
    {StorageFault.FULL, StorageFault.UNREACHABLE, StorageFault.DENIED, StorageFault.NOT_INSTALLED}
)
"""Faults of the store itself: no other artifact can be stored either."""
_SELECT_WAITING: Final = """
select project, owner, artifact, sha256, size, chunks, encrypted
from (
    select *, row_number() over (partition by project order by next_try_at) as place
    from artifacts where stored_at is null and not lost and next_try_at <= now()
) a left join artifact_contents c using (project, sha256, size) order by place, next_try_at limit $1
"""
"""Waiting artifacts, from each project in turn. `encrypted` is null if the content was not stored yet."""
_WHERE_KEY: Final = "where project = $1 and owner = $2 and artifact = $3 and sha256 = $4"
_SET_STORED: Final = f"update artifacts set stored_at = now(), problem = null, over_limit = false {_WHERE_KEY}"  # noqa: S608  # our own text
_ADD_CONTENT: Final = """
insert into artifact_contents (project, sha256, size, bytes, encrypted) values ($1, $2, $3, $4, $5)
on conflict (project, sha256) do update set size = excluded.size, bytes = excluded.bytes, encrypted = excluded.encrypted
"""
_RETRY: Final = f"""
update artifacts set problem = $5, next_try_at = now() + interval '1 minute' {_WHERE_KEY}
"""  # noqa: S608  # our own text
# A replica of the stream may lag behind its leader, so an incomplete artifact is read again for about ten minutes.
_INCOMPLETE: Final = f"""
update artifacts set problem = $5, next_try_at = now() + interval '1 minute',
    lost = $6 or (problem is not null and referred_at < now() - interval '10 minutes') {_WHERE_KEY} returning lost
"""  # noqa: S608  # our own text
# The query reads one entry of the index for each day, not one for each artifact.
_DROPPED_DAYS: Final = """
with recursive days (day) as (
    (select min(day) from artifacts)
    union all
    select (select min(a.day) from artifacts a where a.day > days.day) from days where days.day is not null
), dropped as (
    select day from days
    where day < current_date - 1 and to_regclass('events_' || to_char(day, 'YYYYMMDD')) is null
)
"""
_DELETE_UNREFERRED: Final = (
    f"{_DROPPED_DAYS} delete from artifacts where not archived and day in (select day from dropped)"  # noqa: S608  # our own text
)
_SET_ARCHIVED: Final = f"""
{_DROPPED_DAYS} update artifacts set archived = true where not archived and day in (select day from dropped)
"""  # noqa: S608  # our own text
# Artifacts of projects whose events were removed from a day that stays, because other projects need it.
_IS_REDUCED: Final = """
a.day = r.day and a.project = any(r.projects) and not a.archived and a.day < current_date - 1
    and r.projects <> '{}' and r.reduced_at > now() - interval '7 days'
"""
_UNREFERRED_IN_REDUCED: Final = f"delete from artifacts a using history_reductions r where {_IS_REDUCED}"  # noqa: S608  # our own text
_ARCHIVED_IN_REDUCED: Final = f"update artifacts a set archived = true from history_reductions r where {_IS_REDUCED}"  # noqa: S608  # our own text
_IS_UNUSED: Final = "not exists (select from artifacts a where a.project = c.project and a.sha256 = c.sha256)"
_UNUSED_CONTENTS: Final = f"select project, sha256, encrypted from artifact_contents c where {_IS_UNUSED} limit $1"  # noqa: S608  # our own text
_DELETE_CONTENT: Final = f"delete from artifact_contents c where project = $1 and sha256 = $2 and {_IS_UNUSED}"  # noqa: S608  # our own text
_MEASURE: Final = """
select count(*) as waiting, count(*) filter (where over_limit) as over_limit,
    extract(epoch from now() - min(referred_at)) as oldest
from artifacts where stored_at is null and not lost
"""
_STORED_BYTES: Final = "select coalesce(sum(bytes), 0)::bigint from artifact_contents"
_log: Final = logs.get("artifacts")


class ArtifactStorage:
    """The artifact store of event-ingest."""

    def __init__(
        self, service: Service, database: Database, store: ContentStore, new_reference: asyncio.Event, *, archived: bool
    ) -> None:
        """`new_reference` is set when this replica has stored a reference. Those of other replicas are found later.

        `archived` states that dropped events are in the archive, so that their artifacts must stay.
        """
        self._service = service
        self._database = database
        self._store = store
        self._new_reference = new_reference
        self._archived = archived
        self._limit = ProjectLimit(service.settings.artifact_project_mb)
        self._collected_at = float("-inf")
        self._may_have_garbage = True
        """Whether an earlier process or a failed deletion may have left contents that no artifact has."""

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            if await self._database.wait_available(_CHECK_SECONDS):
                await self._try()
            await asyncio.sleep(_PAUSE_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_SECONDS):
                    await self._new_reference.wait()

    async def _try(self) -> None:
        self._new_reference.clear()
        try:
            async with self._database.locked(LOCK_ID) as alone:
                if alone:
                    async with self._database.maintaining() as connection:
                        await self._store_and_clean(connection)
                else:
                    self._service.meters.hide(*GAUGES)  # another replica exports these gauges now
        except Exception as error:  # narrowed by `classify_error`; others are raised again
            if classify_error(error) is None and not isinstance(error, asyncpg.PostgresError):
                raise
            _log.warning("artifacts not stored, retrying", error=str(error)[:200])

    async def _store_and_clean(self, connection: Connection) -> None:
        """Store a portion of the waiting artifacts, and about once a minute remove those that are not needed."""
        await self._measure(connection)
        if await self.store_waiting(connection) == _PORTION_ROWS:
            self._new_reference.set()  # the lock is acquired again for each portion
        now = asyncio.get_running_loop().time()
        if now - self._collected_at >= _COLLECT_SECONDS:
            self._collected_at = now
            await self.collect_garbage(connection)
            self._service.meters.set("sandherd_artifact_store_bytes", await connection.fetchval(_STORED_BYTES))
        await self._measure(connection)

    async def store_waiting(self, connection: Connection) -> int:
        """Store a portion of the waiting artifacts, until the store or the broker fails.

        Returns how many were handled before that: stored, incomplete, over the limit, or to be tried again.
        """
        self._limit.reset()
        waiting: Sequence[Any] = await connection.fetch(_SELECT_WAITING, _PORTION_ROWS)
        for number, row in enumerate(waiting):
            if not await self._store_artifact(connection, row):
                return number
        return len(waiting)

    async def _store_artifact(self, connection: Connection, row: Any) -> bool:
        """Store an artifact. Returns False if the store or the broker fails, so that others can't be stored now."""
        key = row["project"], row["owner"], row["artifact"], row["sha256"]
        if row["encrypted"] is None and (problem := await self._limit.problem(connection, key[0], row["size"])):
            if await mark_over_limit(connection, row, problem):
                self._service.meters.count("sandherd_artifacts_lost_total")
            return True
        try:
            await self._copy(connection, row)
        except IncompleteArtifactError as error:
            if await connection.fetchval(_INCOMPLETE, *key, str(error), isinstance(error, WrongContentError)):
                self._service.meters.count("sandherd_artifacts_lost_total")
                _log.warning("artifact incomplete, not stored", project=key[0], artifact=key[2], error=str(error))
        except (*BROKER_ERRORS, StorageError) as error:
            await connection.execute(_RETRY, *key, str(error) or repr(error))
            _log.error("artifact not stored, retrying", project=key[0], artifact=key[2], error=str(error))
            return isinstance(error, StorageError) and error.fault not in _STORE_FAULTS
        else:
            await connection.execute(_SET_STORED, *key)
            self._service.meters.count("sandherd_artifacts_stored_total")
        return True

    async def _copy(self, connection: Connection, row: Any) -> None:
        """Read and verify an artifact in its stream, and write its content unless the store has it and can read it."""
        project, sha256, size = row["project"], row["sha256"], row["size"]
        subject = ARTIFACT.fill(project=project, sandbox=row["owner"], artifact=row["artifact"])
        reference = ArtifactRef(
            artifact=row["artifact"], subject=subject, size=size, sha256=sha256, chunks=row["chunks"]
        )
        await asyncio.to_thread(self._store.check_space, size)
        with artifact_file(size) as file:
            await receive(self._service.bus, reference, file)
            if not await self._is_stored(row):
                written = await asyncio.to_thread(self._store.write, project, sha256, chunks_of(file, size), size)
                await connection.execute(_ADD_CONTENT, project, sha256, size, written, self._store.encrypts)
                self._limit.add(project, written)

    async def _is_stored(self, row: Any) -> bool:
        content = row["project"], row["sha256"], row["size"]
        if row["encrypted"] is None:
            return False
        return await asyncio.to_thread(self._store.is_readable, *content, encrypted=row["encrypted"])

    async def collect_garbage(self, connection: Connection) -> None:
        """Delete the artifacts of dropped days, or mark them as archived; then remove contents that no artifact has."""
        reduced_tag = await connection.execute(_ARCHIVED_IN_REDUCED if self._archived else _UNREFERRED_IN_REDUCED)
        dropped_tag = await connection.execute(_SET_ARCHIVED if self._archived else _DELETE_UNREFERRED)
        if not self._may_have_garbage and (self._archived or reduced_tag == dropped_tag == "DELETE 0"):
            return
        removed, self._may_have_garbage = 0, False
        while rows := await connection.fetch(_UNUSED_CONTENTS, _PORTION_ROWS):
            results = [await self._remove(connection, row) for row in rows]
            removed += sum(results)
            if not all(results):
                self._may_have_garbage = True  # tried again at the next run
                break
        if removed:
            _log.info("artifacts removed", contents=removed)

    async def _remove(self, connection: Connection, row: Any) -> bool:
        project, sha256 = row["project"], row["sha256"]
        try:
            await asyncio.to_thread(self._store.delete, project, sha256, encrypted=row["encrypted"])
        except StorageError as error:
            _log.error("artifacts not removed, retrying", project=project, error=str(error))
            return False
        await connection.execute(_DELETE_CONTENT, project, sha256)
        return True

    async def _measure(self, connection: Connection) -> None:
        row: Any = await connection.fetchrow(_MEASURE)
        self._service.meters.set("sandherd_artifacts_waiting", row["waiting"])
        self._service.meters.set("sandherd_artifacts_over_limit", row["over_limit"])
        self._service.meters.set("sandherd_artifacts_oldest_seconds", float(row["oldest"] or 0))
