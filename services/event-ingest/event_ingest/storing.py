"""A batch into the database: one transaction, each event once, and one that can't be stored harms none beside it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from event_ingest.database import Connection, Database, Fault, fault_of
from event_ingest.folding import Folded, folded
from event_ingest.rows import Batch, Row, columns
from event_ingest.standing import as_row
from event_ingest.statements import FOLD_APPROVALS, FOLD_MESSAGES, FOLD_SANDBOXES, FOLD_TASKS, REFUSED, STORE, TWICE
from sandherd.contracts.errors import Code, Problem

_TRIES: Final = 5
"""How often a batch is tried at once when another replica is in the way."""


@dataclass(slots=True)
class Stored:
    """What came of a batch: how many events were new, how many were not, and which can never be stored, and why."""

    new: int = 0
    duplicates: int = 0
    refused: dict[int, Problem] = field(default_factory=dict)
    """By place in the batch."""
    old: frozenset[int] = frozenset()
    """Places of events that were not new."""

    def is_new(self, place: int) -> bool:
        """Whether the event at this place of the batch was stored by it."""
        return place not in self.old and place not in self.refused

    def add(self, other: "Stored") -> "Stored":
        """Both together."""
        return Stored(
            self.new + other.new, self.duplicates + other.duplicates, self.refused | other.refused, self.old | other.old
        )


async def store(database: Database, batch: Batch) -> Stored:
    """Store what is not stored yet.

    Raises what the database raises when it is away; what was not stored by then may be tried again, like all of it.
    """
    try:
        return await _store_at_once(database, batch)
    except Exception as error:  # narrowed by its fault; what is none of the database is raised again
        if fault_of(error) is not Fault.POISON:
            raise
        if len(batch) == 1:
            return Stored(refused={batch.places[0]: _unstorable(error)})
    half = len(batch) // 2
    first = await store(database, batch.part(0, half))
    return first.add(await store(database, batch.part(half, len(batch))))


async def _store_at_once(database: Database, batch: Batch) -> Stored:
    for last in (*[False] * (_TRIES - 1), True):
        try:
            async with database.writing() as connection, connection.transaction():
                return await _write(connection, batch)
        except Exception as error:  # narrowed by its fault; what is none of the database is raised again
            if last or fault_of(error) is not Fault.CONFLICT:
                raise
    raise AssertionError("the last try returns or raises")


async def _write(connection: Connection, batch: Batch) -> Stored:
    new = await connection.fetchval(STORE, *columns(batch.rows))
    stored = Stored(new=len(batch))
    if new is not None:
        stored = await _look_at_the_rest(connection, batch, set(new))
    said = (event for place, event in zip(batch.places, batch.spoken, strict=True) if place not in stored.refused)
    await _fold(connection, folded(event for event in said if event is not None))
    return stored


async def _look_at_the_rest(connection: Connection, batch: Batch, new: set[UUID]) -> Stored:
    """Tell an event that came twice from another that bears its id: that one is refused, and said to be."""
    said = [_identity(row) for row in batch.rows]
    others = {row["place"] - 1 for row in await connection.fetch(TWICE, *columns(said))}
    kept = [identity for place, identity in enumerate(said) if place not in others]
    duplicates = Counter(project for _, project, *_ in kept)
    duplicates.subtract({id_: project for id_, project, *_ in kept if id_ in new}.values())
    counted = +duplicates
    if counted:
        await connection.execute(REFUSED, list(counted), list(counted.values()))
    refused = {batch.places[place]: _TAKEN for place in others}
    return Stored(len(new), counted.total(), refused, _old(batch, new))


def _old(batch: Batch, new: set[UUID]) -> frozenset[int]:
    """Where events stand that were not new, or come a second time in one batch."""
    left, found = set(new), []
    for place, row in zip(batch.places, batch.rows, strict=True):
        if row[0] in left:
            left.remove(row[0])
        else:
            found.append(place)
    return frozenset(found)


def _identity(row: Row) -> Row:
    """What two events of one id must have in common to be the same."""
    id_, _, sequence, _, project, _, type_, source, *_ = row
    return id_, project, source, sequence, type_


async def _fold(connection: Connection, found: Folded) -> None:
    folds: tuple[tuple[str, Mapping[Any, Any]], ...] = (
        (FOLD_SANDBOXES, found.sandboxes),
        (FOLD_TASKS, found.tasks),
        (FOLD_MESSAGES, found.messages),
        (FOLD_APPROVALS, found.approvals),
    )
    for statement, rows in folds:
        if rows:
            values: list[Any] = columns([as_row(row) for row in rows.values()])
            await connection.execute(statement, *values)


_TAKEN: Final = Problem(
    code=Code.CONFLICT,
    message="another event is stored under this id",
    field="id",
    remedy="an id is made once, for one event; find out who said this one",
)


def _unstorable(error: Exception) -> Problem:
    return Problem(code=Code.INVALID_FIELD, message=f"Postgres can't keep it: {str(error)[:200]}", field="data")
