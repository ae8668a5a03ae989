"""`trajectory`: what did this agent do?

The earlier system's answer, without its faults: pages are full, its counts are of everything and not of the page,
events of one moment are never skipped, and a cursor that is none is refused.
"""

from typing import Any

from event_ingest.answers.cursors import read_cursor, write_cursor
from event_ingest.answers.history import (
    PLACE,
    Branches,
    Search,
    find_events,
    is_anything_beyond,
    place_of,
    projects_of_entity,
)
from event_ingest.answers.paging import Cut, scope
from event_ingest.database import Connection
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import AskTrajectory, HeartbeatSummary, StoredEvent, Trajectory

_COUNTS = """
select coalesce(sum(stored), 0)::bigint as stored, coalesce(sum(heartbeats), 0)::bigint as heartbeats,
    min(first_heartbeat) as first_heartbeat, max(last_heartbeat) as last_heartbeat
from sources where entity = $1 and project = any($2::text[])
"""


async def answer_trajectory(connection: Connection, question: AskTrajectory, project: str, budget: int) -> Trajectory:
    """A page of what was said of a sandbox, oldest first on the page whichever way the pages go.

    `newer` begins with the first event, `older` with the last. `next_cursor` goes on that way and is there exactly
    when `has_more` is true; `prev_cursor` is for asking the other way, and is there when something lies there.
    Raises `ContractError` for an unknown sandbox, or a cursor that means nothing.
    """
    after = read_cursor(question, project, question.cursor, PLACE)
    known = await projects_of_entity(connection, question.sandbox)
    projects = [name for name in known if scope(project) in {None, name}]
    if not projects:
        raise _unknown(question.sandbox)
    search = Search(
        Branches(projects, [question.sandbox] * len(projects)), ascending=question.direction == "newer", after=after
    )
    search.conditions.add("type <> 'agent.heartbeat'")
    page = await find_events(connection, search, question.limit, budget)
    counts = await connection.fetchrow(_COUNTS, question.sandbox, projects)
    behind = await _is_anything_behind(connection, search, page)
    return _trajectory(question, project, page, counts, behind=behind)


async def _is_anything_behind(connection: Connection, search: Search, page: Cut[Any, StoredEvent]) -> bool:
    """Whether the way back leads anywhere. Without a cursor the page begins at the end, so it does not."""
    if search.after is None or not page.rows:
        return False
    return await is_anything_beyond(connection, search, place_of(page.rows[0]))


def _trajectory(
    question: AskTrajectory, project: str, page: Cut[Any, StoredEvent], counts: Any, *, behind: bool
) -> Trajectory:
    return Trajectory(
        sandbox_id=question.sandbox,
        events=page.items if question.direction == "newer" else page.items[::-1],
        heartbeat_summary=HeartbeatSummary(
            count=counts["heartbeats"],
            first_heartbeat=counts["first_heartbeat"],
            last_heartbeat=counts["last_heartbeat"],
        ),
        total_events=counts["stored"],
        trajectory_events=counts["stored"] - counts["heartbeats"],
        next_cursor=write_cursor(question, project, place_of(page.rows[-1])) if page.more else None,
        prev_cursor=write_cursor(question, project, place_of(page.rows[0])) if behind else None,
        has_more=page.more,
    )


def _unknown(sandbox: str) -> ContractError:
    return ContractError(
        Code.NOT_FOUND,
        f"nothing is kept of a sandbox {sandbox}",
        field="sandbox",
        remedy="see `sandherd sandboxes list`; an event is kept milliseconds after it was said",
    )
