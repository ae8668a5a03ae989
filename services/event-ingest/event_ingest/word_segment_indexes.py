"""Creates, merges and drops the segments of days that are not over (`word_segments`), while events are stored.

To create a segment, Postgres reads the whole partition. So at most a tenth of the time is used for it, except that the
longest time between two checks is ten minutes. A large day has fewer segments, and searches scan more of its events.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final
from uuid import UUID

from event_ingest.database import Connection, Database
from event_ingest.partition_indexes import MAX_LATENESS, RETRY_SECONDS, PartitionIndexes, has_term_index
from event_ingest.schema import bounds, partition_name
from event_ingest.word_segments import (
    MIN_EVENTS,
    NAME_PATTERN,
    WordSegment,
    id_at,
    indexed_until,
    merge,
    milliseconds_of,
    redundant_segments,
)
from sandherd.telemetry import logs

CHECK_SECONDS: Final = 60.0
"""The minimum interval of counting the events without a segment, in seconds."""
SETTLED_MS: Final = 60_000
"""How long before the newest event a segment ends, in milliseconds. An event that is stored later than that after its
publication is indexed while it is stored, which takes four times as long."""
_WORK_SHARE: Final = 0.1
"""The maximum share of the time in which segments are created: each reads the whole partition twice."""
_MAX_PAUSE_SECONDS: Final = 600.0
"""Maximum time between two checks, in seconds: a check may also take long because it waits for other transactions."""
_LOCK_ID: Final = 0x5A4D_5345_474D
_SEGMENTS: Final = f"""
select own.relname as name, own_index.indisvalid as valid
from pg_inherits tree join pg_index own_index on own_index.indrelid = tree.inhrelid
join pg_class own on own.oid = own_index.indexrelid
where tree.inhparent = 'events'::regclass and own.relname ~ '{NAME_PATTERN}' order by own.relname
"""  # noqa: S608  # a constant
_NEWEST: Final = "select id from {} where id < $1 order by id desc limit 1"
_COUNT: Final = "select count(*) from {} where id >= $1 and id < $2"
_INDEXING: Final = """
select exists (
    select from pg_stat_progress_create_index where datname = current_database() and relid = to_regclass($1))
"""
_log: Final = logs.get("schema")


@dataclass(frozen=True, slots=True)
class StoredSegments:
    """All segments: those that can be used, and those whose creation was interrupted."""

    valid: list[WordSegment]
    invalid: list[WordSegment]


async def read_segments(connection: Connection) -> StoredSegments:
    """The segments of all days."""
    segments = StoredSegments([], [])
    for row in await connection.fetch(_SEGMENTS):
        if (segment := WordSegment.parse(row["name"])) is not None:
            (segments.valid if row["valid"] else segments.invalid).append(segment)
    return segments


async def create_segments(connection: Connection, now: datetime, minimum: int = MIN_EVENTS) -> None:
    """Create the segments that are due, and drop useless ones.

    `connection` must have no timeout of statements and no open transaction. Only one replica may do so at a time. If
    another index of a partition is being created or rebuilt, the partition is left to the next check. The creation of
    that index waits at its end for the snapshots of all statements, also for the snapshot of a statement that waits for
    its lock; Postgres would end this as a deadlock.
    """
    await _drop(connection, (await read_segments(connection)).invalid)
    for day in sorted({(now.astimezone(UTC) - MAX_LATENESS).date(), now.astimezone(UTC).date()}, reverse=True):
        segments = await read_segments(connection)
        segments_of_day = [segment for segment in segments.valid if segment.partition == partition_name(day)]
        if (new := await _due_segment(connection, day, segments_of_day, now, minimum)) is not None:
            await connection.execute(new.statement)
            _log.info("partition index created", index=new.name)
    await _drop(connection, await _useless_segments(connection))


async def _due_segment(
    connection: Connection, day: date, segments_of_day: Sequence[WordSegment], now: datetime, minimum: int
) -> WordSegment | None:
    """The segment to create for a day, which may replace existing ones; None if too few events are in no segment."""
    partition, (start, last) = partition_name(day), bounds(day)
    newest = await _newest_id(connection, partition, now)
    if newest is None or await has_term_index(connection, partition) or await _is_indexed_now(connection, partition):
        return None
    first = indexed_until(segments_of_day, start)
    end = min(last, id_at(max(0, milliseconds_of(newest) - SETTLED_MS)))
    events = await connection.fetchval(_COUNT.format(partition), first, end) if first < end else 0
    return merge(segments_of_day, WordSegment(partition, first, end, events)) if events >= minimum else None


async def _newest_id(connection: Connection, partition: str, now: datetime) -> UUID | None:
    """The greatest id that is not later than `now`. While events of the past are stored, it is one of theirs."""
    if not await connection.fetchval("select to_regclass($1) is not null", partition):
        return None
    newest: UUID | None = await connection.fetchval(_NEWEST.format(partition), id_at(int(now.timestamp() * 1000)))
    return newest


async def _useless_segments(connection: Connection) -> list[WordSegment]:
    """The segments that were merged into others, and those of days that have their complete index of words."""
    segments = (await read_segments(connection)).valid
    complete = {name for name in {segment.partition for segment in segments} if await has_term_index(connection, name)}
    return redundant_segments(segments) + [segment for segment in segments if segment.partition in complete]


async def _drop(connection: Connection, segments: Sequence[WordSegment]) -> None:
    for segment in dict.fromkeys(segments):
        if not await _is_indexed_now(connection, segment.partition):
            await connection.execute(f"drop index concurrently if exists {segment.name}")
            _log.info("partition index dropped", index=segment.name)


async def _is_indexed_now(connection: Connection, partition: str) -> bool:
    """Whether an index of a partition is being created or rebuilt."""
    is_indexed: bool = await connection.fetchval(_INDEXING, partition)
    return is_indexed


def seconds_until_check(check_seconds: float) -> float:
    """The seconds until the next check, after a check that took `check_seconds`. Pure."""
    return min(max(CHECK_SECONDS, check_seconds / _WORK_SHARE), _MAX_PAUSE_SECONDS)


class WordSegments(PartitionIndexes):
    """Creates segments, once a minute or less often. It runs in every replica, of which one creates them at a time."""

    lock = _LOCK_ID

    def __init__(self, database: Database, minimum: int = MIN_EVENTS) -> None:
        """`minimum` is the number of events in no segment from which on a segment is created."""
        super().__init__(database)
        self._minimum = minimum

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            if await self._database.wait_available(RETRY_SECONDS):
                await asyncio.sleep(await self.check())

    async def check(self) -> float:
        """Create and drop the segments that are due. Returns the seconds until the next check, even after an error."""
        began = time.monotonic()
        await self._try()
        return seconds_until_check(time.monotonic() - began)

    async def _create(self, connection: Connection, now: datetime) -> None:
        await create_segments(connection, now, self._minimum)
