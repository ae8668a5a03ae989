"""`verification`: do the read tables agree with the stored events?"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any, Final

from event_ingest.database import Connection
from event_ingest.projections import Projections, project_events
from event_ingest.queries.pages import project_filter
from event_ingest.queries.trajectory import no_such_sandbox
from event_ingest.verification import (
    TABLES,
    Pair,
    ReadTable,
    Totals,
    compare_rows,
    compare_totals,
    expected_rows,
    incomplete_pairs,
)
from sandherd.contracts.decoder import read_event
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import ContractError
from sandherd.contracts.events import EVENTS
from sandherd.contracts.events.sandbox import SandboxExtended
from sandherd.contracts.requests import HistoryDifference, Verification, VerifyHistory
from sandherd.contracts.requests.verification import MAX_DIFFERENCES
from sandherd.contracts.states import ApprovalState, MessageState, SandboxState, TaskState
from sandherd.contracts.subjects import event_subject
from sandherd.service.cursors import read_cursor, write_cursor

_POSITION_TYPES: Final = (str, str)
"""The types of the values in a cursor."""
_STATE_CLASSES: Final = (TaskState, SandboxState, MessageState, ApprovalState)
_TYPES: Final = [
    name
    for name, model in EVENTS.items()
    if not name.startswith("agent.") and (isinstance(model.sets_state, _STATE_CLASSES) or model is SandboxExtended)
]
"""The types of events that change a read table."""
# In the order of an index of `sources`. Rows of read tables without any event are listed, too: they are differences.
_ENTITIES: Final = """
select entity, project from (
    (select distinct entity, project from sources
        where entity <> '' and ($1::text is null or project = $1) and (entity, project) > ($2, $3)
        order by entity, project limit $4)
    union
    (select task, project from tasks
        where ($1::text is null or project = $1) and (task, project) > ($2, $3) order by task, project limit $4)
    union
    (select sandbox, project from sandboxes
        where ($1::text is null or project = $1) and (sandbox, project) > ($2, $3) order by sandbox, project limit $4)
    union
    (select distinct sandbox, project from messages
        where ($1::text is null or project = $1) and (sandbox, project) > ($2, $3) order by sandbox, project limit $4)
    union
    (select distinct sandbox, project from approvals
        where ($1::text is null or project = $1) and (sandbox, project) > ($2, $3) order by sandbox, project limit $4)
) as named order by entity, project limit $4
"""
_OF_SANDBOX: Final = """
select sandbox as entity, project from sandboxes where sandbox = $2 and ($1::text is null or project = $1)
union select task, project from sandboxes
where sandbox = $2 and task is not null and ($1::text is null or project = $1)
"""
_WANTED: Final = "unnest($1::text[], $2::text[]) as wanted (project, entity)"
_RELATED_PAIRS: Final = f"""
select distinct b.project, b.task as entity from {_WANTED}
join sandboxes b on b.project = wanted.project and b.sandbox = wanted.entity where b.task is not null
"""  # noqa: S608  # a constant statement
_EVENTS: Final = f"""
select e.project, e.entity, e.type, event_document(e) as envelope from {_WANTED}
join events e on e.entity = wanted.entity and e.project || '' = wanted.project where e.type = any($3)
"""  # noqa: S608  # a constant statement
# Includes removed events. A removed event that is stored again, because its day was restored, counts once.
_COUNT_SOURCES: Final = f"""
with removed as (
    select s.project, s.source, s.entity, sum(s.events) as events, range_agg(s.sequences) as sequences,
        sum(s.sequence_sum) as sequence_sum
    from {_WANTED} join event_summaries s on s.entity = wanted.entity and s.project = wanted.project group by 1, 2, 3
)
select project, source, entity, sum(number)::bigint as stored, max(highest)::bigint as highest,
    sum(total)::bigint as sequence_sum
from (
    select e.project, event_source(e.source, e.entity) as source, e.entity, count(*) as number,
        max(e.sequence)::bigint as highest, sum(e.sequence) as total
    from {_WANTED} join events e on e.entity = wanted.entity and e.project || '' = wanted.project
    left join removed r on r.project = e.project and r.source = event_source(e.source, e.entity) and r.entity = e.entity
    where coalesce(not e.sequence::bigint <@ r.sequences, true) group by 1, 2, 3
    union all select project, source, entity, events, upper(sequences) - 1, sequence_sum from removed
) c group by 1, 2, 3
"""  # noqa: S608  # a constant statement
_SOURCES: Final = f"""
select s.project, s.source, s.entity, s.stored, s.highest, s.sequence_sum
from {_WANTED} join sources s on s.entity = wanted.entity and s.project = wanted.project
"""  # noqa: S608  # a constant statement


async def verify_tables(connection: Connection, request: VerifyHistory, project: str, _max_bytes: int) -> Verification:
    """Compare some entities at one moment. Raises `ContractError` for an invalid cursor or an unknown sandbox."""
    position = read_cursor(request, project, request.cursor, _POSITION_TYPES) or ["", ""]
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        if request.sandbox is None:
            rows = await connection.fetch(_ENTITIES, project_filter(project), *position, request.limit + 1)
        else:
            rows = await connection.fetch(_OF_SANDBOX, project_filter(project), request.sandbox)
            if not rows:
                raise no_such_sandbox(request.sandbox)
        page = rows if request.sandbox else rows[: request.limit]
        incomplete, differences = await _compare(connection, {(row["project"], row["entity"]) for row in page})
    more = len(rows) > len(page)
    last = [page[-1]["entity"], page[-1]["project"]] if more else []
    return Verification(
        entities=len(page),
        incomplete=incomplete,
        differences=differences[:MAX_DIFFERENCES],
        difference_count=len(differences),
        next_cursor=write_cursor(request, project, last) if more else None,
    )


async def _compare(connection: Connection, pairs: set[Pair]) -> tuple[int, list[HistoryDifference]]:
    examined = await examine_entities(connection, pairs)
    return len(incomplete_pairs(examined.stored, examined.counted) & pairs), examined.differences(pairs)


@dataclass(frozen=True)
class ExaminedEntities:
    """What the tables have of some entities, and what results from their events."""

    stored: Totals
    """The totals in the table `sources`, also of related tasks."""
    counted: Totals
    """The totals of the events, also of related tasks."""
    related: frozenset[Pair]
    """Tasks whose events change the rows of these sandboxes."""
    projected: Projections
    """The states that result from the events."""
    rows: Mapping[str, Sequence[Any]]
    """The stored rows, by table."""

    def differences(self, pairs: set[Pair]) -> list[HistoryDifference]:
        """All differences of these entities. States are compared only for entities whose events are complete."""
        stored, counted = _totals_of(self.stored, pairs), _totals_of(self.counted, pairs)
        complete = pairs - incomplete_pairs(stored, counted)
        compared = [compare_rows(table, self._rows_of(table, complete), self.projected, complete) for table in TABLES]
        return [*compare_totals(stored, counted), *chain.from_iterable(compared)]

    def rows_from_events(self, table: ReadTable, pairs: set[Pair]) -> dict[tuple[str, ...], Any]:
        """The rows that result from the events."""
        return expected_rows(table, self.projected, pairs)

    def _rows_of(self, table: ReadTable, pairs: set[Pair]) -> list[Any]:
        return [row for row in self.rows[table.name] if (row["project"], row[table.entity]) in pairs]


async def examine_entities(connection: Connection, pairs: set[Pair]) -> ExaminedEntities:
    """Read what the tables have of some entities, and what results from their events. Call it in a transaction."""
    related = {
        (row["project"], row["entity"]) for row in await connection.fetch(_RELATED_PAIRS, *_as_columns(pairs))
    } - pairs
    wanted = _as_columns(pairs | related)
    return ExaminedEntities(
        stored=_totals(await connection.fetch(_SOURCES, *wanted)),
        counted=_totals(await connection.fetch(_COUNT_SOURCES, *wanted)),
        related=frozenset(related),
        projected=await _project(connection, pairs | related),
        rows={table.name: await _stored_rows(connection, table, pairs) for table in TABLES},
    )


async def list_entities(
    connection: Connection, project: str | None, position: tuple[str, str], limit: int
) -> list[Pair]:
    """The entities after a position, which is an entity and its project, in the order of their names."""
    rows = await connection.fetch(_ENTITIES, project, *position, limit)
    return [(row["project"], row["entity"]) for row in rows]


def _totals_of(totals: Totals, pairs: set[Pair]) -> Totals:
    return {key: value for key, value in totals.items() if (key[0], key[2]) in pairs}


async def _project(connection: Connection, pairs: set[Pair]) -> Projections:
    """The states that result from the events. An event that this version can't read has no effect."""
    rows = await connection.fetch(_EVENTS, *_as_columns(pairs), _TYPES)
    return project_events(_valid_events(rows))


def _valid_events(rows: Iterable[Any]) -> Iterable[Envelope[Any]]:
    for row in rows:
        try:
            yield read_event(event_subject(row["project"], row["entity"], row["type"]), row["envelope"].encode())
        except ContractError:
            continue


async def _stored_rows(connection: Connection, table: ReadTable, pairs: set[Pair]) -> list[Any]:
    names = ", ".join(f"t.{column.name}" for column in fields(table.row))
    statement = (
        f"select {names} from {_WANTED} "  # noqa: S608  # constant names
        f"join {table.name} t on t.project = wanted.project and t.{table.entity} = wanted.entity"
    )
    return list(await connection.fetch(statement, *_as_columns(pairs)))


def _as_columns(pairs: set[Pair]) -> tuple[list[str], list[str]]:
    ordered = sorted(pairs)
    return [project for project, _ in ordered], [entity for _, entity in ordered]


def _totals(rows: Iterable[Any]) -> dict[tuple[str, str, str], tuple[int, int, int]]:
    return {
        (row["project"], row["source"], row["entity"]): (row["stored"], row["highest"], row["sequence_sum"])
        for row in rows
    }
