"""Finding events: along the branches that a question is about, in the order of the stream."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from pydantic_core import to_json

from event_ingest.answers.cursors import Place
from event_ingest.answers.paging import Conditions, Cut, bounded, cut
from event_ingest.database import Connection
from sandherd.contracts.requests import StoredEvent

PLACE: Final = (int, str)
"""The types of an event's place: its stream sequence, and its id should a stream have been made anew."""
_FIRST_FREE: Final = 5


@dataclass(frozen=True)
class Branches:
    """Where to look: in these projects, and in each for its entity, or for all if `entities` is None.

    Each branch is one walk along an index in the order of the answer; the answer is merged from their beginnings.
    """

    projects: list[str]
    entities: list[str] | None = None


@dataclass
class Search:
    """What is wanted of the branches, in which order, and from which place on."""

    branches: Branches
    ascending: bool = True
    after: Place | None = None
    conditions: Conditions = field(default_factory=lambda: Conditions(_FIRST_FREE))


async def find_events(connection: Connection, search: Search, limit: int, budget: int) -> Cut[Any, StoredEvent]:
    """A page of events, in the order asked for."""
    branches = search.branches
    rows = await connection.fetch(
        _statement(search), branches.projects, branches.entities or branches.projects, limit, budget, *_values(search)
    )
    found = rows[0]["found"] if rows else 0
    return await cut(rows, lambda row: _stored_event(row, budget), limit=limit, budget=budget, found=found)


async def is_anything_beyond(connection: Connection, search: Search, place: Place) -> bool:
    """Whether there is an event on the other side of `place`, seen from where the search goes."""
    other_way = Search(search.branches, not search.ascending, place, search.conditions)
    return bool((await find_events(connection, other_way, 1, 0)).rows)


def place_of(row: Any) -> Place:
    """Where an event stands in the order."""
    return [row["stream_sequence"], str(row["id"])]


async def projects_with_events(connection: Connection) -> list[str]:
    """Every project that was ever heard of, by stepping along an index: not a look at each event."""
    rows = await connection.fetch(_PROJECTS)
    return [row["project"] for row in rows]


async def projects_of_entity(connection: Connection, entity: str) -> list[str]:
    """The projects that have something of this name."""
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


def _statement(search: Search) -> str:
    way, beyond = ("asc", ">") if search.ascending else ("desc", "<")
    order = f"stream_sequence {way}, id {way}"
    # Without statistics, as on a new day, Postgres may walk along all of a project to find one entity: hide that index.
    project = "project = branch.project"
    if search.branches.entities is not None:
        project = "entity = branch.entity and project || '' = branch.project"
    place = ""
    if search.after is not None:
        first = _FIRST_FREE + len(search.conditions.values)
        place = f"and (stream_sequence, id) {beyond} (${first}::bigint, ${first + 1}::uuid)"
    walk = (
        f"select found.* from unnest($1::text[], $2::text[]) as branch (project, entity) "  # noqa: S608  # all ours
        f"cross join lateral (select stream_sequence, id, size + 64 as size, envelope from events "
        f"where {project} {place} {search.conditions} order by {order} limit $3 + 1) as found"
    )
    return bounded(walk, order, "$3", "$4")


def _values(search: Search) -> list[Any]:
    if search.after is None:
        return search.conditions.values
    sequence, identifier = search.after
    return [*search.conditions.values, sequence, UUID(identifier)]


def _stored_event(row: Any, budget: int) -> StoredEvent:
    stored = StoredEvent(stream_sequence=row["stream_sequence"], envelope=json.loads(row["envelope"]))
    if row["size"] * 2 > budget > 0 and len(to_json(stored)) > budget:
        # Said with numbers that are longer once read; it must not hide what comes after it.
        stored.envelope["data"] = {}
        stored.envelope["dataomitted"] = f"{row['size']} bytes that do not fit an answer"
    return stored


def branches_of(pairs: Sequence[tuple[str, str]]) -> Branches:
    """Branches for these pairs of project and entity, each once."""
    once = list(dict.fromkeys(pairs))
    return Branches([project for project, _ in once], [entity for _, entity in once])
