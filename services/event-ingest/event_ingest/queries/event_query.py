"""Finds the events of projects or entities (the branches of a search), in the order of the stream."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from pydantic_core import to_json

from event_ingest.database import Connection
from event_ingest.huge_numbers import may_have_huge_number
from event_ingest.queries.pages import Conditions, FittedPage, fit_page, limited_statement
from sandherd.contracts.envelope import is_nested_deeper
from sandherd.contracts.requests import StoredEvent
from sandherd.service.cursors import Position

POSITION_TYPES: Final = (int, str)
"""The types of an event's position: its stream sequence, and its id in case a stream was recreated."""
_FIRST_CONDITION_PARAMETER: Final = 5
_MAX_DEPTH: Final = 160
"""Maximum nesting of an event in a reply, which nests it by three levels more. Parsers of requesters fail at about 200,
and an earlier version stored events of any depth that it could parse itself."""


@dataclass(frozen=True)
class QueryBranches:
    """Where to search: in each project for the entity at the same index; for all entities if `entities` is None.

    Each branch is read along an index, in the order of the reply. The reply is merged from the first rows of each.
    """

    projects: list[str]
    entities: list[str] | None = None


@dataclass
class EventQuery:
    """The branches to search, the conditions, the order, and the position to start from."""

    branches: QueryBranches
    ascending: bool = True
    after: Position | None = None
    conditions: Conditions = field(default_factory=lambda: Conditions(_FIRST_CONDITION_PARAMETER))


async def find_events(connection: Connection, search: EventQuery, limit: int, max_bytes: int) -> FittedPage[Any, bytes]:
    """A page of events, in the requested order. Each is the JSON of a `StoredEvent`."""
    rows = await _fetch(connection, search, limit, max_bytes)
    return await fit_page(
        rows,
        lambda row: _stored_event_json(row, max_bytes),
        limit=limit,
        max_bytes=max_bytes,
        available=_available(rows),
        size_of=len,
    )


async def find_parsed_events(
    connection: Connection, search: EventQuery, limit: int, max_bytes: int
) -> FittedPage[Any, StoredEvent]:
    """Like `find_events`, for a reply that has other contents of the events than their JSON."""
    rows = await _fetch(connection, search, limit, max_bytes)
    return await fit_page(
        rows,
        lambda row: StoredEvent.model_validate_json(_stored_event_json(row, max_bytes)),
        limit=limit,
        max_bytes=max_bytes,
        available=_available(rows),
    )


async def _fetch(connection: Connection, search: EventQuery, limit: int, max_bytes: int) -> list[Any]:
    branches = search.branches
    rows: list[Any] = await connection.fetch(
        _statement(search),
        branches.projects,
        branches.entities or branches.projects,
        limit,
        max_bytes,
        *_values(search),
    )
    return rows


def _available(rows: Sequence[Any]) -> int:
    return rows[0]["available"] if rows else 0


async def has_events_beyond(connection: Connection, search: EventQuery, position: Position) -> bool:
    """Whether there is an event before `position` in the direction of the search."""
    opposite = EventQuery(search.branches, not search.ascending, position, search.conditions)
    return bool(await _fetch(connection, opposite, 1, 0))


def position_of(row: Any) -> Position:
    """The position of an event in the order of the stream."""
    return [row["stream_sequence"], str(row["id"])]


async def projects_with_events(connection: Connection) -> list[str]:
    """All projects with events. It reads one entry of an index for each project, not each event."""
    rows = await connection.fetch(_PROJECTS)
    return [row["project"] for row in rows]


async def projects_of_entity(connection: Connection, entity: str) -> list[str]:
    """The projects that have an entity of this name."""
    rows = await connection.fetch("select distinct project from sources where entity = $1 order by project", entity)
    return [row["project"] for row in rows]


_PROJECTS: Final = """
with recursive step (project) as (
    (select project from sources order by project limit 1)
    union all
    select (select s.project from sources s where s.project > step.project order by s.project limit 1)
    from step where step.project is not null
)
select project from step where project is not null
"""


def _statement(search: EventQuery) -> str:
    direction, operator = ("asc", ">") if search.ascending else ("desc", "<")
    order = f"stream_sequence {direction}, id {direction}"
    # Without statistics, as on a new day, Postgres may read all events of a project to find one entity. With
    # `project || ''`, it can't use the index of projects for that.
    project = "project = branch.project"
    if search.branches.entities is not None:
        project = "entity = branch.entity and project || '' = branch.project"
    position = ""
    if search.after is not None:
        first = _FIRST_CONDITION_PARAMETER + len(search.conditions.values)
        position = f"and (stream_sequence, id) {operator} (${first}::bigint, ${first + 1}::uuid)"
    rows_of_branches = (
        f"select found.* from unnest($1::text[], $2::text[]) as branch (project, entity) "  # noqa: S608  # constants and placeholders
        f"cross join lateral (select stream_sequence, id, size + 64 as size, event_document(e) as envelope "
        f"from events e where {project} {position} {search.conditions} order by {order} limit $3 + 1) as found"
    )
    return limited_statement(rows_of_branches, order, "$3", "$4")


def _values(search: EventQuery) -> list[Any]:
    if search.after is None:
        return search.conditions.values
    sequence, identifier = search.after
    return [*search.conditions.values, sequence, UUID(identifier)]


def _stored_event_json(row: Any, max_bytes: int) -> bytes:
    """The JSON of a `StoredEvent`. Its envelope is the text that was published, unless some requesters can't read it.

    Those would not read any event of the reply. So a number that is too large for a double is null, as if the event
    were written again, and an event that is too large or too deep has no data.
    """
    document = b'{"stream_sequence":%d,"envelope":%b}' % (row["stream_sequence"], row["envelope"].encode())
    if may_have_huge_number(document):
        document = _rewritten(row)
    if len(document) <= max_bytes and not is_nested_deeper(document, _MAX_DEPTH):
        return document
    reason = "that do not fit in a reply" if len(document) > max_bytes else "nested too deeply for a reply"
    return _rewritten(row, data={}, dataomitted=f"{row['size']} bytes {reason}")


def _rewritten(row: Any, **changed: Any) -> bytes:
    """The JSON of a `StoredEvent`, written again, with these attributes of its envelope changed."""
    stored = StoredEvent(stream_sequence=row["stream_sequence"], envelope=json.loads(row["envelope"]) | changed)
    return to_json(stored, inf_nan_mode="null")


def branches_of(pairs: Sequence[tuple[str, str]]) -> QueryBranches:
    """The branches for these pairs of project and entity, without duplicates."""
    unique = list(dict.fromkeys(pairs))
    return QueryBranches([project for project, _ in unique], [entity for _, entity in unique])
