"""Rebuilds rows of the read tables that differ from what the events result in, while events are stored.

    sandherd-event-ingest rebuild [--project PROJECT]

Rows are compared in the same way as by `verification`. If an entity has differences, all of its rows are computed
again, in one transaction. It blocks batches while the events of the entity are read. An entity is left as it is if its
events can't prove its state: if some were dropped or never stored, or if there are none.
"""

import argparse
import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from event_ingest.batch_statements import FOLD_APPROVALS, FOLD_MESSAGES, FOLD_SANDBOXES, FOLD_TASKS
from event_ingest.database import Connection
from event_ingest.event_rows import columns
from event_ingest.queries.verification import ExaminedEntities, examine_entities, list_entities
from event_ingest.read_models import as_row
from event_ingest.totals_recount import RECOUNT
from event_ingest.verification import TABLES, Pair, ReadTable, Totals

_PAGE_SIZE: Final = 20  # entities that are compared at once
_MAX_TRIES: Final = 60  # to lock the tables
# It locks the tables in the same order as batches do. Requests can still read the tables.
_LOCK: Final = """
set local lock_timeout = '1s';
lock table sources, sandboxes, tasks, messages, approvals in share row exclusive mode;
"""
_FOLDS: Final = {
    "tasks": FOLD_TASKS,
    "sandboxes": FOLD_SANDBOXES,
    "messages": FOLD_MESSAGES,
    "approvals": FOLD_APPROVALS,
}


@dataclass(slots=True)
class RebuildCounts:
    """Numbers of entities."""

    entities: int = 0
    """How many were compared."""
    rebuilt: int = 0
    """How many had differences, and were computed again."""
    not_rebuilt: int = 0
    """How many have differences, and were left as they are."""


async def rebuild_tables(connection: Connection, project: str | None = None) -> RebuildCounts:
    """Compute entities with differences again, of one project or of all. `connection` must have no open transaction.

    If it is interrupted, each entity is rebuilt completely or not at all: run it again.
    """
    counts, position = RebuildCounts(), ("", "")
    while pairs := await list_entities(connection, project, position, _PAGE_SIZE):
        counts.entities += len(pairs)
        for pair in await _pairs_with_differences(connection, pairs):
            rebuilt = await _rebuild(connection, pair)
            counts.rebuilt += rebuilt
            counts.not_rebuilt += not rebuilt
        last = pairs[-1]
        position = last[1], last[0]
    return counts


async def _pairs_with_differences(connection: Connection, pairs: Collection[Pair]) -> list[Pair]:
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        examined = await examine_entities(connection, set(pairs))
    return [pair for pair in pairs if examined.differences({pair})]


async def _rebuild(connection: Connection, pair: Pair) -> bool:
    """Compute the rows of an entity again. Returns False and changes nothing if its events are not complete."""
    for tries_left in reversed(range(_MAX_TRIES)):
        try:
            async with connection.transaction():
                await connection.execute(_LOCK)
                return await _replace(connection, pair)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            if not tries_left:
                raise
            await asyncio.sleep(0.1)  # batches of events go first
    raise AssertionError("the last try returns or raises")


async def _replace(connection: Connection, pair: Pair) -> bool:
    examined = await examine_entities(connection, {pair})
    if not all(
        is_complete(examined.stored, examined.counted, related_pair) for related_pair in {pair} | examined.related
    ):
        return False
    for table in TABLES:
        await _replace_rows(connection, table, examined, pair)
    await connection.execute(RECOUNT, *pair)
    return True


async def _replace_rows(connection: Connection, table: ReadTable, examined: ExaminedEntities, pair: Pair) -> None:
    rows = [as_row(row) for row in examined.rows_from_events(table, {pair}).values()]
    project, entity = pair
    await connection.execute(
        f"delete from {table.name} where project = $1 and {table.entity} = $2",  # noqa: S608  # constant names
        project,
        entity,
    )
    if rows:
        values: list[Any] = columns(rows)
        await connection.execute(_FOLDS[table.name], *values)


def is_complete(stored: Totals, counted: Totals, pair: Pair) -> bool:
    """Whether all events of an entity are stored.

    Each source must have all sequences from 1 on, and no fewer events than the table `sources` states.
    """
    counts = {key: totals for key, totals in counted.items() if (key[0], key[2]) == pair}
    stored_counts = {key: number for key, (number, *_) in stored.items() if (key[0], key[2]) == pair}
    gapless = all(
        number == highest and total == highest * (highest + 1) // 2 for number, highest, total in counts.values()
    )
    return (
        bool(counts)
        and gapless
        and all(key in counts and counts[key][0] >= stored_counts[key] for key in stored_counts)
    )


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `rebuild` to the arguments of the program."""
    parser = commands.add_parser("rebuild", help="compute the tables again where they differ from the events")
    parser.add_argument("--project", help="only this project [all]")


async def run_command(connection: Connection, options: argparse.Namespace) -> str:
    """Run the command in the arguments. Returns the text to print."""
    counts = await rebuild_tables(connection, options.project)
    not_rebuilt = (
        f", {counts.not_rebuilt} left as they are, as their events are incomplete" if counts.not_rebuilt else ""
    )
    return f"{counts.entities} compared, {counts.rebuilt} rebuilt{not_rebuilt}\n"
