"""`events`: which events are kept?"""

import re
from typing import Any, Final

from event_ingest.answers.cursors import read_cursor, write_cursor
from event_ingest.answers.history import (
    PLACE,
    Branches,
    Search,
    branches_of,
    find_events,
    place_of,
    projects_with_events,
)
from event_ingest.answers.paging import scope
from event_ingest.answers.searched import check_searched
from event_ingest.database import Connection
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import AskEvents, EventList

MOST_BRANCHES: Final = 64
"""Of one source; a source that spoke of more is looked for along its whole project."""
_HIGHEST: Final = """
select coalesce(max(highest), 0) from sources where source = $1 and ($2::text is null or project = $2)
"""
_TYPE: Final = re.compile(r"[a-z][a-z_]{0,63}\.([a-z][a-z_]{0,63}|\*)", re.ASCII)
_Pairs = list[tuple[str, str]]


async def answer_events(connection: Connection, question: AskEvents, project: str, budget: int) -> EventList:
    """A page of events. Raises `ContractError` for filters or a cursor that mean nothing."""
    _check(question)
    after = read_cursor(question, project, question.cursor, PLACE)
    search = Search(Branches([]), ascending=not question.newest_first, after=after)
    if await nothing_newer(connection, question, scope(project)):
        return EventList(events=[], next_cursor=None)
    search.branches = await _branches(connection, question, scope(project))
    await _narrow(connection, search, question, scope(project))
    page = await find_events(connection, search, question.limit, budget)
    cursor = write_cursor(question, project, place_of(page.rows[-1])) if page.more else None
    return EventList(events=page.items, next_cursor=cursor)


async def nothing_newer(connection: Connection, question: AskEvents, project: str | None) -> bool:
    """Whether a source has no event after the number that is asked from: who follows a sandbox asks it again and again.

    `sources` knows it; along the events of a large sandbox it would take a look at each.
    """
    if question.source is None or question.after_sequence is None:
        return False
    highest: int = await connection.fetchval(_HIGHEST, question.source, project)
    return highest <= question.after_sequence


def _check(question: AskEvents) -> None:
    check_searched(question.source, "source")
    for place, wanted in enumerate(question.types):
        if not _TYPE.fullmatch(wanted):
            raise ContractError(
                Code.INVALID_FIELD,
                f"types.{place}: {wanted[:80]!r} is neither a type like 'agent.tool_use' nor a domain like 'agent.*'",
                field=f"types.{place}",
            )
    if question.after_sequence is not None and not (question.sandbox or question.source):
        raise ContractError(
            Code.INVALID_FIELD,
            "after_sequence: every source counts for itself",
            field="after_sequence",
            remedy="name a sandbox or a source with it",
        )


async def _branches(connection: Connection, question: AskEvents, project: str | None) -> Branches:
    """The narrowest walk that meets every event asked for."""
    pairs: _Pairs | None = None
    if question.entity is not None:
        pairs = await _in_projects(connection, project, question.entity)
    elif question.sandbox is not None:
        pairs = await _of_sandbox(connection, project, question.sandbox)
    elif question.task is not None:
        pairs = await _of_task(connection, project, question.task)
    elif question.source is not None:
        pairs = await _of_source(connection, project, question.source)
    if pairs is not None:
        return branches_of(pairs)
    return Branches([project] if project else await projects_with_events(connection))


async def _narrow(connection: Connection, search: Search, question: AskEvents, project: str | None) -> None:
    add = search.conditions.add
    if question.sandbox is not None:
        add("(entity = {} or sandboxid = {})", question.sandbox, question.sandbox)
    if question.task is not None:
        mine = [entity for _, entity in await _of_task(connection, project, question.task)]
        add("entity = any({}::text[])", mine)
    if question.source is not None:
        add("source = {}", question.source)
    if question.types:
        add("(type = any({}::text[]) or split_part(type, '.', 1) = any({}::text[]))", *_split(question.types))
    if question.since is not None:
        add("time >= {}", question.since)
    if question.until is not None:
        add("time < {}", question.until)
    if question.after_sequence is not None:
        add("sequence > {}", question.after_sequence)


def _split(types: list[str]) -> tuple[list[str], list[str]]:
    """Whole types, and domains."""
    return (
        [name for name in types if not name.endswith(".*")],
        [name.removesuffix(".*") for name in types if name.endswith(".*")],
    )


async def _in_projects(connection: Connection, project: str | None, entity: str) -> _Pairs:
    return await _pairs(connection, "select project, entity from sources where entity = $1", project, entity)


async def _of_sandbox(connection: Connection, project: str | None, sandbox: str) -> _Pairs:
    """The sandbox, and its task: the task's events name it."""
    tasks = "select project, task from sandboxes where sandbox = $1 and task is not null"
    return [
        *await _in_projects(connection, project, sandbox),
        *await _pairs(connection, tasks, project, sandbox),
    ]


async def _of_task(connection: Connection, project: str | None, task: str) -> _Pairs:
    """The task, and the sandboxes that the spawner made for it: what an agent says of its task is not asked."""
    sandboxes = "select project, sandbox from sandboxes where task = $1"
    return [
        *await _in_projects(connection, project, task),
        *await _pairs(connection, sandboxes, project, task),
    ]


async def _of_source(connection: Connection, project: str | None, source: str) -> _Pairs | None:
    spoke_of = f"select project, entity from sources where source = $1 limit {MOST_BRANCHES + 1}"  # noqa: S608  # no value in it
    pairs = await _pairs(connection, spoke_of, project, source)
    return pairs if len(pairs) <= MOST_BRANCHES else None


async def _pairs(connection: Connection, statement: str, project: str | None, name: str) -> _Pairs:
    """What the statement finds for a name, in one project or in all."""
    bound = f"select * from ({statement}) as found (project, name) where $2::text is null or project = $2"  # noqa: S608  # no value in it
    rows: list[Any] = await connection.fetch(bound, name, project)
    return [(row["project"], row["name"]) for row in rows]
