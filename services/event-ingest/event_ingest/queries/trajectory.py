"""`trajectory`: what did this agent do?

The reply has the same form as that of an earlier system. Unlike there, pages are full, counts are of all events and not
only of the page, events with the same time are never skipped, and an invalid cursor is refused.
"""

from typing import Any

from event_ingest.database import Connection
from event_ingest.queries.event_query import (
    POSITION_TYPES,
    EventQuery,
    QueryBranches,
    find_events,
    has_events_beyond,
    position_of,
    projects_of_entity,
)
from event_ingest.queries.pages import FittedPage, project_filter
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events.agent import AgentHeartbeat
from sandherd.contracts.requests import GetTrajectory, HeartbeatSummary, Trajectory
from sandherd.service.cursors import read_cursor, write_cursor
from sandherd.service.encoded_answer import EncodedAnswer

_COUNTS = """
select coalesce(sum(stored), 0)::bigint as stored, coalesce(sum(heartbeats), 0)::bigint as heartbeats,
    min(first_heartbeat) as first_heartbeat, max(last_heartbeat) as last_heartbeat
from sources where entity = $1 and project = any($2::text[])
"""


async def read_trajectory(
    connection: Connection, request: GetTrajectory, project: str, max_bytes: int
) -> EncodedAnswer[Trajectory]:
    """A page of a sandbox's events, oldest first on the page, in either direction of paging.

    `newer` begins with the first event, `older` with the last. `next_cursor` continues in that direction and is set
    exactly when `has_more` is true; `prev_cursor` is for the other direction, and is set when there is an event there.
    Raises `ContractError` for an unknown sandbox, or an invalid cursor.
    """
    after = read_cursor(request, project, request.cursor, POSITION_TYPES)
    all_projects = await projects_of_entity(connection, request.sandbox)
    projects = [name for name in all_projects if project_filter(project) in {None, name}]
    if not projects:
        raise no_such_sandbox(request.sandbox)
    search = EventQuery(
        QueryBranches(projects, [request.sandbox] * len(projects)), ascending=request.direction == "newer", after=after
    )
    search.conditions.add(f"type <> '{AgentHeartbeat.type}'")
    page = await find_events(connection, search, request.limit, max_bytes)
    counts = await connection.fetchrow(_COUNTS, request.sandbox, projects)
    has_previous = await _has_events_behind(connection, search, page)
    events = page.items if request.direction == "newer" else page.items[::-1]
    return EncodedAnswer(_trajectory(request, project, page, counts, has_previous=has_previous), "events", events)


async def _has_events_behind(connection: Connection, search: EventQuery, page: FittedPage[Any, bytes]) -> bool:
    """Whether there are events in the other direction. Without a cursor there are none: the page is the first."""
    if search.after is None or not page.rows:
        return False
    return await has_events_beyond(connection, search, position_of(page.rows[0]))


def _trajectory(
    request: GetTrajectory, project: str, page: FittedPage[Any, bytes], counts: Any, *, has_previous: bool
) -> Trajectory:
    """The trajectory of a page, without its events."""
    return Trajectory(
        sandbox_id=request.sandbox,
        events=[],
        heartbeat_summary=HeartbeatSummary(
            count=counts["heartbeats"],
            first_heartbeat=counts["first_heartbeat"],
            last_heartbeat=counts["last_heartbeat"],
        ),
        total_events=counts["stored"],
        trajectory_events=counts["stored"] - counts["heartbeats"],
        next_cursor=write_cursor(request, project, position_of(page.rows[-1])) if page.has_more else None,
        prev_cursor=write_cursor(request, project, position_of(page.rows[0])) if has_previous else None,
        has_more=page.has_more,
    )


def no_such_sandbox(sandbox: str) -> ContractError:
    """The error for a sandbox of which no event is stored."""
    return ContractError(
        Code.NOT_FOUND,
        f"no events are stored of sandbox {sandbox}",
        field="sandbox",
        remedy="list the sandboxes; an event is stored milliseconds after it was published",
    )
