"""Rebuilds rows of the read tables that are not what the events result in, while events are stored.

    sandherd-event-ingest rebuild [--project PROJECT]

Rows are compared as `verification` does. Of an entity with differences all rows are computed again, in one transaction
that holds up batches for as long as its events take to read. An entity stays as it is if its events can't prove its
state: if some were dropped or never stored, or if there are none.
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
from event_ingest.queries.verification import ExaminedEntities, examine, list_entities
from event_ingest.read_models import as_row
from event_ingest.totals_recount import RECOUNT
from event_ingest.verification import TABLES, Pair, ReadTable, Totals

_PAGE: Final = 20
_TRIES: Final = 60
# In the order in which batches lock them. Requests still read the tables.
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
    """How many entities were compared, how many of them were computed again, and how many could not be."""

    entities: int = 0
    rebuilt: int = 0
    left: int = 0
    """They have differences, and stay as they are."""


async def rebuild_tables(connection: Connection, project: str | None = None) -> RebuildCounts:
    """Compute the rows that differ again, of one project or all. `connection` has no open transaction.

    Interrupted, it has rebuilt some entities completely and others not at all: run it again.
    """
    done, position = RebuildCounts(), ("", "")
    while pairs := await list_entities(connection, project, position, _PAGE):
        done.entities += len(pairs)
        for pair in await _differing(connection, pairs):
            rebuilt = await _rebuild(connection, pair)
            done.rebuilt += rebuilt
            done.left += not rebuilt
        last = pairs[-1]
        position = last[1], last[0]
    return done


async def _differing(connection: Connection, pairs: Collection[Pair]) -> list[Pair]:
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        examined = await examine(connection, set(pairs))
    return [pair for pair in pairs if examined.differences({pair})]


async def _rebuild(connection: Connection, pair: Pair) -> bool:
    """Compute the rows of one entity again; returns whether its events are complete."""
    for left in reversed(range(_TRIES)):
        try:
            async with connection.transaction():
                await connection.execute(_LOCK)
                return await _replace(connection, pair)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            if not left:
                raise
            await asyncio.sleep(0.1)  # batches go first
    raise AssertionError("the last try returns or raises")


async def _replace(connection: Connection, pair: Pair) -> bool:
    examined = await examine(connection, {pair})
    if not all(is_complete(examined.stored, examined.counted, one) for one in {pair} | examined.related):
        return False
    for table in TABLES:
        await _replace_rows(connection, table, examined, pair)
    await connection.execute(RECOUNT, *pair)
    return True


async def _replace_rows(connection: Connection, table: ReadTable, examined: ExaminedEntities, pair: Pair) -> None:
    rows = [as_row(row) for row in examined.expected(table, {pair}).values()]
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
    """Whether all events of an entity are stored: of each source those from 1 on, without a gap, and all counted."""
    counts = {key: totals for key, totals in counted.items() if (key[0], key[2]) == pair}
    known = {key: number for key, (number, *_) in stored.items() if (key[0], key[2]) == pair}
    gapless = all(number == high and total == high * (high + 1) // 2 for number, high, total in counts.values())
    return bool(counts) and gapless and all(key in counts and counts[key][0] >= known[key] for key in known)


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `rebuild` to the arguments of the program."""
    parser = commands.add_parser("rebuild", help="compute the tables again where they differ from the events")
    parser.add_argument("--project", help="only this project [all]")


async def run_command(connection: Connection, options: argparse.Namespace) -> str:
    """Do what the arguments state; returns the text to print."""
    done = await rebuild_tables(connection, options.project)
    left = f", {done.left} left as they are, as their events are incomplete" if done.left else ""
    return f"{done.entities} compared, {done.rebuilt} rebuilt{left}\n"
