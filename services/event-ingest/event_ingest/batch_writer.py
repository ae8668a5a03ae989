"""Stores a batch in one transaction. Each event is stored once; one that can't be stored does not affect the others."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final
from uuid import UUID

import asyncpg

from event_ingest.artifacts.references import ADD_REFERENCES, ArtifactRow
from event_ingest.batch_statements import (
    CONFLICTING,
    COUNT_DUPLICATES,
    COUNT_NEW,
    FOLD_APPROVALS,
    FOLD_MESSAGES,
    FOLD_SANDBOXES,
    FOLD_TASKS,
    STORE,
    STORE_NEW,
)
from event_ingest.batch_totals import batch_totals
from event_ingest.database import Connection, Database, DatabaseFault, classify_error
from event_ingest.event_rows import COLUMNS, EventBatch, Row, columns
from event_ingest.projections import Projections, project_events
from event_ingest.read_models import as_row
from event_ingest.short_rows import short_rows
from sandherd.contracts.errors import Code, Problem

_MIN_EVENTS_FOR_COPY: Final = 200
"""A batch with at least this number of events is stored by COPY: two more round trips, but 5 µs less per event."""
_COPIED_COLUMNS: Final = [name for name, _ in COLUMNS]
MAX_BYTES: Final = 32 * 1024 * 1024
"""Maximum bytes of the events in one transaction, because it must end within the timeout of a statement."""
_SIZE: Final = itemgetter([name for name, _ in COLUMNS].index("size"))
_MAX_TRIES: Final = 5
"""Maximum immediate tries of a batch while another replica interferes."""

Write = Callable[[Connection, EventBatch, Sequence[Row]], Awaitable["BatchResult"]]


@dataclass(slots=True)
class BatchResult:
    """The result of storing a batch. Indexes are among the deliveries."""

    new: int = 0
    """The number of new events."""
    duplicates: int = 0
    """The number of events that were stored before, or occur in the batch a second time."""
    refused: dict[int, Problem] = field(default_factory=dict)
    """By index of an event: the reason why it can never be stored."""
    old: frozenset[int] = frozenset()
    """Indexes of events that were not new."""

    def is_new(self, index: int) -> bool:
        """Whether the event of this delivery was stored by this batch."""
        return index not in self.old and index not in self.refused

    def add(self, other: "BatchResult") -> "BatchResult":
        """The sum of both results."""
        return BatchResult(
            self.new + other.new, self.duplicates + other.duplicates, self.refused | other.refused, self.old | other.old
        )


async def store(database: Database, batch: EventBatch) -> BatchResult:
    """Store those events of a batch that are not stored yet.

    Raises the database's error if the database is unavailable. Then call this function again with the whole batch.
    """
    if len(batch) == 1 or sum(map(_SIZE, batch.rows)) <= MAX_BYTES:
        try:
            return await _store_with_retries(database, batch)
        except Exception as error:  # narrowed by `classify_error`; others are raised again
            if classify_error(error) is not DatabaseFault.POISON:
                raise
            if len(batch) == 1:
                return BatchResult(refused={batch.indexes[0]: _unstorable(error)})
    half = len(batch) // 2
    first = await store(database, batch.part(0, half))
    return first.add(await store(database, batch.part(half, len(batch))))


async def _store_with_retries(database: Database, batch: EventBatch) -> BatchResult:
    try:
        return await _write_with_retries(database, batch, write_new)
    except asyncpg.UniqueViolationError:
        return await _write_with_retries(database, batch, _write_each)


async def _write_with_retries(database: Database, batch: EventBatch, write: Write) -> BatchResult:
    for is_last in (*[False] * (_MAX_TRIES - 1), True):
        try:
            async with database.writing() as connection:
                return await write(connection, batch, stored_rows(database, batch))
        except Exception as error:  # narrowed by `classify_error`; others are raised again
            if is_last or classify_error(error) is not DatabaseFault.CONFLICT:
                raise
    raise AssertionError("the last try returns or raises")


def stored_rows(database: Database, batch: EventBatch) -> Sequence[Row]:
    """The rows of a batch in the form in which they are stored."""
    return short_rows(batch.rows, batch.short) if database.stores_short_rows else batch.rows


async def write_new(connection: Connection, batch: EventBatch, rows: Sequence[Row]) -> BatchResult:
    """Store a batch of new events, which is the usual case. Raises `asyncpg.UniqueViolationError` if one is not new."""
    projections = project_events(event for event in batch.service_events if event is not None)
    referred = batch.referred()
    if not projections and not referred and len(batch) < _MIN_EVENTS_FOR_COPY:
        await connection.execute(STORE_NEW, *columns(rows), *batch_totals(batch))  # one statement is one transaction
        return BatchResult(new=len(batch))
    async with connection.transaction():
        if len(batch) < _MIN_EVENTS_FOR_COPY:
            await connection.execute(STORE_NEW, *columns(rows), *batch_totals(batch))
        else:
            records = sorted(rows, key=_number_of)  # in the same order in all replicas, which could deadlock otherwise
            await connection.copy_records_to_table("events", records=records, columns=_COPIED_COLUMNS)
            await connection.execute(COUNT_NEW, *batch_totals(batch))
        await _fold(connection, projections)
        await _add_references(connection, referred)
    return BatchResult(new=len(batch))


async def _write_each(connection: Connection, batch: EventBatch, rows: Sequence[Row]) -> BatchResult:
    """Store the events that are not stored yet, and classify the others."""
    async with connection.transaction():
        return await _write_in_transaction(connection, batch, rows)


async def _write_in_transaction(connection: Connection, batch: EventBatch, rows: Sequence[Row]) -> BatchResult:
    new = await connection.fetchval(STORE, *columns(rows))
    stored = BatchResult(new=len(batch))
    if new is not None:
        stored = await _classify_existing(connection, batch, set(new))
    indexes = zip(batch.indexes, batch.service_events, strict=True)
    accepted = (event for index, event in indexes if event is not None and index not in stored.refused)
    await _fold(connection, project_events(accepted))
    await _add_references(connection, batch.referred())
    return stored


async def _classify_existing(connection: Connection, batch: EventBatch, new: set[UUID]) -> BatchResult:
    """Count the duplicates of stored events. Events that differ from the stored event with their id are refused."""
    identities = [_identity(row) for row in batch.rows]
    conflicts = {row["place"] - 1 for row in await connection.fetch(CONFLICTING, *columns(identities))}
    same = [identity for index, identity in enumerate(identities) if index not in conflicts]
    duplicates = Counter(project for _, project, *_ in same)
    duplicates.subtract({id_: project for id_, project, *_ in same if id_ in new}.values())
    counted = +duplicates  # without zero counts
    if counted:
        await connection.execute(COUNT_DUPLICATES, list(counted), list(counted.values()))
    refused = {batch.indexes[index]: _ID_CONFLICT for index in conflicts}
    return BatchResult(len(new), counted.total(), refused, _duplicate_indexes(batch, new))


def _duplicate_indexes(batch: EventBatch, new: set[UUID]) -> frozenset[int]:
    """Indexes of events that were not new, or are a second copy in the same batch."""
    remaining, indexes = set(new), []
    for index, row in zip(batch.indexes, batch.rows, strict=True):
        if row[0] in remaining:
            remaining.remove(row[0])
        else:
            indexes.append(index)
    return frozenset(indexes)


def _number_of(row: Row) -> int:
    """The id as a number, because numbers are compared faster than ids."""
    number: int = row[0].int
    return number


def _identity(row: Row) -> Row:
    """The values in which two deliveries with the same id must agree to be the same event."""
    id_, _, sequence, _, project, _, type_, source, *_ = row
    return id_, project, source, sequence, type_


async def _add_references(connection: Connection, referred: list[ArtifactRow]) -> None:
    if referred:
        await connection.execute(ADD_REFERENCES, *columns(referred))


async def _fold(connection: Connection, projections: Projections) -> None:
    folds: tuple[tuple[str, Mapping[Any, Any]], ...] = (
        (FOLD_SANDBOXES, projections.sandboxes),
        (FOLD_TASKS, projections.tasks),
        (FOLD_MESSAGES, projections.messages),
        (FOLD_APPROVALS, projections.approvals),
    )
    for statement, rows in folds:
        if rows:
            values: list[Any] = columns([as_row(row) for row in rows.values()])
            await connection.execute(statement, *values)


_ID_CONFLICT: Final = Problem(
    code=Code.CONFLICT,
    message="another event is stored under this id",
    field="id",
    remedy="use a new id for every event; find the publisher of this one",
)


def _unstorable(error: Exception) -> Problem:
    return Problem(code=Code.INVALID_FIELD, message=f"Postgres can't store it: {str(error)[:200]}", field="data")
