"""`transcript`: what did the agent and its users write, and which tools did it call?"""

from event_ingest.database import Connection
from event_ingest.queries.event_query import (
    POSITION_TYPES,
    EventQuery,
    QueryBranches,
    find_parsed_events,
    position_of,
    projects_of_entity,
)
from event_ingest.queries.pages import project_filter
from event_ingest.queries.trajectory import no_such_sandbox
from event_ingest.transcript_entries import transcript_entry, transcript_types
from sandherd.contracts.requests import GetTranscript, Transcript
from sandherd.service.cursors import read_cursor, write_cursor


async def read_transcript(connection: Connection, request: GetTranscript, project: str, max_bytes: int) -> Transcript:
    """A page of entries. Raises `ContractError` for an unknown sandbox, or an invalid cursor."""
    after = read_cursor(request, project, request.cursor, POSITION_TYPES)
    projects = await visible_projects(connection, request.sandbox, project)
    branches = QueryBranches(projects, [request.sandbox] * len(projects))
    search = EventQuery(branches, ascending=not request.newest_first, after=after)
    search.conditions.add(
        "type = any({}::text[])", transcript_types(thoughts=request.thoughts, results=request.results)
    )
    page = await find_parsed_events(connection, search, request.limit, max_bytes)
    cursor = write_cursor(request, project, position_of(page.rows[-1])) if page.has_more else None
    return Transcript(entries=[transcript_entry(event) for event in page.items], next_cursor=cursor)


async def visible_projects(connection: Connection, sandbox: str, project: str) -> list[str]:
    """The projects with events of a sandbox that the requester may see. Raises `ContractError` if there is none."""
    projects = await projects_of_entity(connection, sandbox)
    visible = [name for name in projects if project_filter(project) in {None, name}]
    if not visible:
        raise no_such_sandbox(sandbox)
    return visible
