"""`events`: which events are stored?"""

from typing import Any, Final

from event_ingest.batch_statements import EVENT_SOURCE
from event_ingest.database import Connection
from event_ingest.queries.event_query import (
    POSITION_TYPES,
    EventQuery,
    QueryBranches,
    branches_of,
    find_events,
    position_of,
    projects_with_events,
)
from event_ingest.queries.pages import check_searchable, project_filter
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.event_types import DOMAINS, chosen_types
from sandherd.contracts.requests import EventList, ListEvents
from sandherd.service.cursors import read_cursor, write_cursor
from sandherd.service.encoded_answer import EncodedAnswer

MAX_BRANCHES: Final = 64
"""Maximum entities of a source. If a source has more, all events of the project or projects are searched."""
_HIGHEST_SEQUENCE: Final = """
select coalesce(max(highest), 0) from sources where source = $1 and ($2::text is null or project = $2)
"""
_Pairs = list[tuple[str, str]]
"""Pairs of project and entity."""


async def list_events(
    connection: Connection, request: ListEvents, project: str, max_bytes: int
) -> EncodedAnswer[EventList]:
    """A page of events. Raises `ContractError` for invalid filters or an invalid cursor."""
    _check_filters(request)
    after = read_cursor(request, project, request.cursor, POSITION_TYPES)
    search = EventQuery(QueryBranches([]), ascending=not request.newest_first, after=after)
    if await is_up_to_date(connection, request, project_filter(project)):
        return EncodedAnswer(EventList(events=[]), "events", [])
    search.branches = await _branches(connection, request, project_filter(project))
    await _add_conditions(connection, search, request, project_filter(project))
    page = await find_events(connection, search, request.limit, max_bytes)
    cursor = write_cursor(request, project, position_of(page.rows[-1])) if page.has_more else None
    return EncodedAnswer(EventList(events=[], next_cursor=cursor), "events", page.items)


async def is_up_to_date(connection: Connection, request: ListEvents, project: str | None) -> bool:
    """Whether the requested source has no event after the requested sequence. Clients that follow a sandbox poll this.

    It reads the table `sources`, because a search in the events of a large sandbox would read all of them.
    """
    if request.source is None or request.after_sequence is None:
        return False
    highest: int = await connection.fetchval(_HIGHEST_SEQUENCE, request.source, project)
    return highest <= request.after_sequence


def _check_filters(request: ListEvents) -> None:
    check_searchable(request.source, "source")
    chosen_types(request.types, newer=True)
    if request.after_sequence is not None and not (request.sandbox or request.source):
        raise ContractError(
            Code.INVALID_FIELD,
            "after_sequence: sequences are counted per source",
            field="after_sequence",
            remedy="name a sandbox or a source with it",
        )


async def _branches(connection: Connection, request: ListEvents, project: str | None) -> QueryBranches:
    """The narrowest branches that contain every requested event."""
    pairs: _Pairs | None = None
    if request.entity is not None:
        pairs = await _pairs_of_entity(connection, project, request.entity)
    elif request.sandbox is not None:
        pairs = await _pairs_of_sandbox(connection, project, request.sandbox)
    elif request.task is not None:
        pairs = await _pairs_of_task(connection, project, request.task)
    elif request.source is not None:
        pairs = await _pairs_of_source(connection, project, request.source)
    if pairs is not None:
        return branches_of(pairs)
    return QueryBranches([project] if project else await projects_with_events(connection))


async def _add_conditions(connection: Connection, search: EventQuery, request: ListEvents, project: str | None) -> None:
    add = search.conditions.add
    if request.sandbox is not None:
        add("(entity = {} or sandboxid = {})", request.sandbox, request.sandbox)
    if request.task is not None:
        entities = [entity for _, entity in await _pairs_of_task(connection, project, request.task)]
        add("entity = any({}::text[])", entities)
    if request.source is not None:
        add(f"{EVENT_SOURCE} = {{}}", request.source)
    if request.types:
        add(
            "(type = any({}::text[]) or split_part(type, '.', 1) = any({}::text[]))",
            *_split_types(chosen_types(request.types, newer=True)),
        )
    if request.since is not None:
        add("time >= {}", request.since)
    if request.until is not None:
        add("time < {}", request.until)
    if request.after_sequence is not None:
        add("sequence > {}", request.after_sequence)


def _split_types(types: list[str]) -> tuple[list[str], list[str]]:
    """The names of types, and the names of domains."""
    return (
        [name for name in types if name not in DOMAINS],
        [name for name in types if name in DOMAINS],
    )


async def _pairs_of_entity(connection: Connection, project: str | None, entity: str) -> _Pairs:
    return await _fetch_pairs(connection, "select project, entity from sources where entity = $1", project, entity)


async def _pairs_of_sandbox(connection: Connection, project: str | None, sandbox: str) -> _Pairs:
    """The sandbox and its task: some events of the task name the sandbox."""
    tasks = "select project, task from sandboxes where sandbox = $1 and task is not null"
    return [
        *await _pairs_of_entity(connection, project, sandbox),
        *await _fetch_pairs(connection, tasks, project, sandbox),
    ]


async def _pairs_of_task(connection: Connection, project: str | None, task: str) -> _Pairs:
    """The task, and the sandboxes that the spawner created for it; events of agents do not decide which these are."""
    sandboxes = "select project, sandbox from sandboxes where task = $1"
    return [
        *await _pairs_of_entity(connection, project, task),
        *await _fetch_pairs(connection, sandboxes, project, task),
    ]


async def _pairs_of_source(connection: Connection, project: str | None, source: str) -> _Pairs | None:
    statement = f"select project, entity from sources where source = $1 limit {MAX_BRANCHES + 1}"  # noqa: S608  # no value in it
    pairs = await _fetch_pairs(connection, statement, project, source)
    return pairs if len(pairs) <= MAX_BRANCHES else None


async def _fetch_pairs(connection: Connection, statement: str, project: str | None, name: str) -> _Pairs:
    """The pairs that the statement finds for a name, in one project or in all."""
    scoped = f"select * from ({statement}) as found (project, name) where $2::text is null or project = $2"  # noqa: S608  # no value in it
    rows: list[Any] = await connection.fetch(scoped, name, project)
    return [(row["project"], row["name"]) for row in rows]
