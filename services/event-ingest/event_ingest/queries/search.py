"""`search`: which events have these words?

Partitions are searched one after the other, the newest first, so older hits take longer. A partition has an index of
words. If its day is not over, it has such indexes for some ranges of ids only (`word_segments`), and the other ranges
are read in portions. A search that takes too long ends with the hits that it has found.
"""

import json
from asyncio import get_running_loop
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from event_ingest.database import Connection
from event_ingest.history_partitions import parse_day
from event_ingest.queries.pages import Conditions, fit_page, limited_statement, project_filter
from event_ingest.schema import bounds
from event_ingest.search_texts import (
    SEARCHED_TYPES,
    SearchTerm,
    included_tokens,
    kind_of,
    phrases,
    plain_terms,
    search_marks,
    search_terms,
    searched_partitions,
    searched_text,
    snippet_of,
    token_query,
)
from event_ingest.word_segments import NAME_PATTERN, WordSegment, id_ranges
from sandherd.contracts.requests import SearchEvents, SearchHit, SearchResult
from sandherd.service.cursors import Position, read_cursor, read_id, write_cursor

SECONDS: Final = 2.0
"""After this time, no further part is searched."""
_POSITION_TYPES: Final = (str, str)
"""The types of a position: the partition, and the id before which to continue in it; empty: from its end."""
_FIRST_CONDITION_PARAMETER: Final = 4
_NO_ENTITY: Final = "-"
"""A name that no entity has."""
_TEXT: Final = "' ' || array_to_string(event_terms(type collate \"default\", envelope), ' ') || ' '"
"""The words as `event_words` has them. With the collation of the column, `lower` would change ASCII letters only."""
MAX_BYTES: Final = 4_000_000
"""Maximum bytes of events that one statement reads for hits: events may be large, though their snippets are short."""
_TYPES: Final = ", ".join(f"'{name}'" for name in SEARCHED_TYPES)
_PARTITIONS: Final = """
select part.relname, coalesce(own.indisvalid, false) as indexed, case when own.indisvalid then '{}' else array(
    select segment.relname::text from pg_index i join pg_class segment on segment.oid = i.indexrelid
    where i.indrelid = part.oid and i.indisvalid and segment.relname ~ $1) end as segments
from pg_inherits join pg_class part on part.oid = inhrelid
left join pg_class named on named.relname = part.relname || '_of_words' and named.relnamespace = part.relnamespace
left join pg_index own on own.indexrelid = named.oid
where inhparent = 'events'::regclass order by part.relname = 'events_default', part.relname desc
"""
FIRST_PORTION: Final = 250
"""How many events without an index are read first. If the word is frequent, they fill a page; each hit takes 40 µs."""
PORTION = 5000
"""Maximum events without an index that are read at once. Up to it, each portion is twice as large as the last one."""
_FIRST_ID: Final = "select id from {} where id < $1 and id >= $3 order by id desc offset $2 limit 1"
"""The first id of a portion: that of the event which follows $2 newer ones before the id $1, and is not below $3."""
_LOWEST_ID: Final = UUID(int=0)
_HIGHEST_ID: Final = "ffffffff-ffff-ffff-ffff-ffffffffffff"
_CONTAINS: Final = 'strpos(lower(envelope::text collate "C"), {}) > 0'
"""Whether a document may have a word. It takes a hundredth of the time that computing the words takes."""
_LIKE: Final = "envelope::text like any (array[{}])"
_ESCAPE: Final = r"\\u"
"""A pattern of `like` for escaped characters: with them, an agent could hide words from `_CONTAINS`."""
_CAPITALS: Final = {"i": "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}", "k": "\N{KELVIN SIGN}"}
"""For two letters of ASCII: another letter that `lower` changes to it, but that `_CONTAINS` does not find."""
_ENTITIES: Final = """
select sandbox as entity from sandboxes where task = $1 and ($2::text is null or project = $2) limit 1000
"""


@dataclass(frozen=True)
class _Part:
    """What one statement searches: a partition whose name was read from the database, or a range of ids in it."""

    partition: str
    before: str = ""
    """The id before which the range ends; empty: it ends with the partition."""
    first: UUID | None = None
    """The first id of the range; None: it begins with the partition."""
    indexed: bool = True
    segment: WordSegment | None = None
    """The index of this range of ids; None if there is none, or one of the whole partition."""


@dataclass
class _Search:
    """The conditions of a search."""

    tokens: str
    """The query for the index of words."""
    conditions: Conditions
    """The other conditions for a hit."""
    groups: Sequence[Sequence[Sequence[str]]]
    """The words for a quick check of events without an index: of each group, a hit has all words of one list."""

    async def hits(self, connection: Connection, part: _Part, limit: int) -> tuple[list[Any], bool]:
        """The newest hits of a part, and whether there are more."""
        conditions = Conditions(_FIRST_CONDITION_PARAMETER, [*self.conditions.parts], [*self.conditions.values])
        if part.segment is not None:
            # Without parameters, so that Postgres can see that the index has all rows.
            conditions.add(part.segment.condition)
        if part.before:
            conditions.add("id < {}", UUID(part.before))
        if part.first is not None:
            conditions.add("id >= {}", part.first)
        for alternatives in self.groups if not part.indexed else ():
            conditions.add(_quick_condition(alternatives), *(token for tokens in alternatives for token in tokens))
        page = f"""
select id, stream_sequence, time, project, entity, type, envelope, size from {part.partition} e
where type in ({_TYPES})
    and event_words(project, entity, type, envelope) @@ lower($1)::tsquery
    {conditions}
"""  # noqa: S608  # a name from the database, constants and placeholders
        statement = limited_statement(page, "id desc", "$2", "$3")
        rows = await connection.fetch(statement, self.tokens, limit, MAX_BYTES, *conditions.values)
        return list(rows[:limit]), bool(rows) and rows[0]["available"] > len(rows[:limit])


def _quick_condition(alternatives: Sequence[Sequence[str]]) -> str:
    """The quick condition for documents that may have all words of one of these lists."""
    conditions = ["(" + " and ".join(_CONTAINS for _ in tokens) + ")" for tokens in alternatives]
    letters = {letter for tokens in alternatives for token in tokens for letter in token}
    hidden = [_ESCAPE, *(_CAPITALS[letter] for letter in sorted(letters & _CAPITALS.keys()))]
    patterns = ", ".join(f"'%{pattern}%'" for pattern in hidden)
    return f"({' or '.join([*conditions, _LIKE.format(patterns)])})"


async def search_events(connection: Connection, request: SearchEvents, project: str, max_bytes: int) -> SearchResult:
    """Hits, newest first. Raises `ContractError` for a text without words, and for an invalid cursor."""
    after = read_cursor(request, project, request.cursor, _POSITION_TYPES)
    groups = search_terms(request.text)
    search = await _search(connection, request, project_filter(project), groups)
    partitions = {row["relname"]: row for row in await connection.fetch(_PARTITIONS, NAME_PATTERN)}
    names = searched_partitions(list(partitions), request.since, request.until, after[0] if after else None)
    start, before = after or ("", "")
    until = read_id(before) if before else None
    parts = [part for name in names for part in _parts_before(partitions[name], until if name == start else None)]
    rows, position = await _collect(connection, search, parts, request.limit)
    tokens = included_tokens(groups)
    page = await fit_page(
        rows, lambda row: _hit(row, tokens), limit=request.limit, max_bytes=max_bytes, available=len(rows)
    )
    if page.has_more:
        position = _position(page.rows[-1])
    cursor = write_cursor(request, project, position) if position is not None else None
    return SearchResult(hits=page.items, next_cursor=cursor)


def _parts_before(partition: Any, before: UUID | None) -> list[_Part]:
    """The parts of a partition with ids below `before`, the newest first."""
    name = partition["relname"]
    if partition["indexed"]:
        return [_Part(name, str(before or ""))]
    segments = [segment for segment in map(WordSegment.parse, partition["segments"]) if segment is not None]
    day = parse_day(name)
    ranges = id_ranges(segments, bounds(day)[0] if day else None, before)
    return [
        _Part(
            name,
            str(id_range.before or ""),
            id_range.first,
            indexed=id_range.segment is not None,
            segment=id_range.segment,
        )
        for id_range in ranges
    ]


async def _search(
    connection: Connection, request: SearchEvents, project: str | None, groups: Sequence[Sequence[SearchTerm]]
) -> _Search:
    conditions = Conditions(_FIRST_CONDITION_PARAMETER)
    if request.since is not None:
        conditions.add("time >= {}", request.since)
    if request.until is not None:
        conditions.add("time < {}", request.until)
    entities = await _entities(connection, request, project)
    kinds = [f"k {kind}" for kind in request.kinds]
    marks = search_marks([f"p {project}"] if project else [], kinds, [f"e {name}" for name in entities])
    for alternatives, excluded in phrases(groups):
        any_phrase = " or ".join(f"strpos({_TEXT}, lower({{}})) > 0" for _ in alternatives)
        conditions.add(f"{'not ' if excluded else ''}({any_phrase})", *alternatives)
    return _Search(" & ".join(filter(None, (token_query(groups), marks))), conditions, plain_terms(groups))


async def _entities(connection: Connection, request: SearchEvents, project: str | None) -> list[str]:
    """The entities to search; empty: all."""
    if request.task is None:
        return [request.sandbox] if request.sandbox else []
    rows = await connection.fetch(_ENTITIES, request.task, project)
    names = [request.task, *(row["entity"] for row in rows)]
    return names if request.sandbox is None else [name for name in names if name == request.sandbox] or [_NO_ENTITY]


async def _portions(connection: Connection, part: _Part) -> AsyncIterator[_Part]:
    """The portions of a part without an index, the newest first. A part with an index is its only portion.

    Without portions, all events would be searched for a frequent word before the first hits are returned.
    """
    size = FIRST_PORTION
    while not part.indexed:
        size = min(size, PORTION)
        values = UUID(part.before or _HIGHEST_ID), size - 1, part.first or _LOWEST_ID
        first = await connection.fetchval(_FIRST_ID.format(part.partition), *values)
        yield part if first is None else replace(part, first=first)
        if first is None:
            return
        part, size = replace(part, before=str(first)), size * 2
    yield part


async def _collect(
    connection: Connection, search: _Search, parts: Sequence[_Part], limit: int
) -> tuple[list[Mapping[str, Any]], Position | None]:
    """At most `limit` hits, and the position where to continue; None if everything was searched."""
    deadline = get_running_loop().time() + SECONDS
    rows: list[Mapping[str, Any]] = []
    for searched_part in parts:
        async for part in _portions(connection, searched_part):
            if len(rows) == limit or get_running_loop().time() > deadline:
                return rows, [part.partition, part.before]
            hits, has_more = await search.hits(connection, part, limit - len(rows))
            rows += [{**row, "partition": part.partition} for row in hits]
            if has_more:
                return rows, _position(rows[-1])
    return rows, None


def _position(row: Mapping[str, Any]) -> Position:
    return [row["partition"], str(row["id"])]


def _hit(row: Mapping[str, Any], tokens: Sequence[str]) -> SearchHit:
    data = json.loads(row["envelope"]).get("data") or {}
    snippet, matches = snippet_of(searched_text(row["type"], data), tokens)
    return SearchHit(
        id=str(row["id"]),
        kind=kind_of(row["type"]),
        turn=data.get("turn") or 0,
        snippet=snippet,
        matches=matches,
        **{name: row[name] for name in ("stream_sequence", "time", "project", "entity", "type")},
    )
