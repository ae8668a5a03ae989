"""`audit`: is any event missing?"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from event_ingest.database import Connection, Database
from event_ingest.ended_task_cleanup import expired_error
from event_ingest.ingest import CONSUMER
from event_ingest.queries.pages import project_filter
from event_ingest.queries.stream_reader import broker_unavailable
from event_ingest.queries.trajectory import no_such_sandbox
from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.contracts.decoder import AGENT_SOURCE
from sandherd.contracts.requests import Audit, Gap, GetAudit, SourceAudit
from sandherd.contracts.states import SANDBOX_ENDED
from sandherd.contracts.streams import BY_CONSUMER
from sandherd.contracts.subjects import Principal

MAX_SOURCES: Final = 200
"""Maximum number of listed sources. Of these, the incomplete ones are checked sequence by sequence."""
MAX_GAPS: Final = 100  # of a source
MAX_MISSING: Final = 1_000_000
"""If a source seems to lack more events, they are not counted: the large number would hide real losses."""
MAX_INCOMPLETE: Final = 100  # listed sandboxes whose source was not closed

_MONITOR: Final = Principal.MONITOR.value
"""The monitor's sources are about all sandboxes and end with none of them, so an audit of a sandbox leaves them out."""

# A source is complete if the number of its events is its highest sequence n, and the sum of its sequences is the sum of
# 1 to n. The sum reveals a missing sequence if another one was used twice. The sources of a sandbox include those of
# its task, and the sources of a task those of all its sandboxes.
_SOURCES: Final = f"""
with related (project, entity) as (
    select b.project, b.task from sandboxes b
    where b.sandbox = $2 and b.task is not null and ($1::text is null or b.project = $1)
    union all
    select b.project, b.sandbox from sandboxes b where b.task = $2 and ($1::text is null or b.project = $1)
), source_totals as (
    select project, source, array_agg(entity) as entities, sum(stored)::bigint as stored, max(highest) as highest,
        sum(sequence_sum)::numeric as total, max(closing) as closing
    from sources
    where ($1::text is null or project = $1)
        and ($2::text is null or (project, source) in (
            select s.project, s.source from sources s
            where s.entity = $2 or (s.project, s.entity) in (select r.project, r.entity from related r))
            and split_part(source, '/', 3) <> '{_MONITOR}')
    group by project, source
    having $2::text is null or bool_and(
        entity = $2 or (project, entity) in (select r.project, r.entity from related r))
), checked as (
    select *, stored = highest and total = highest::numeric * (highest + 1) / 2 as whole from source_totals
)
"""  # noqa: S608  # a constant statement
_TOTALS: Final = f"""
{_SOURCES}
select count(*) as sources, coalesce(sum(stored), 0)::bigint as events,
    coalesce(sum(highest - stored) filter (where highest - stored between 1 and {MAX_MISSING}), 0)::bigint as missing,
    count(*) filter (where highest - stored > {MAX_MISSING}) as implausible,
    coalesce(sum(stored - highest) filter (where stored > highest), 0)::bigint as surplus
from checked
"""  # noqa: S608  # a constant statement
_LISTED_SOURCES: Final = f"""
{_SOURCES}
select project, source, entities, stored, highest, closing, whole,
    (select min(b.sandbox) from sandboxes b where b.project = checked.project and b.sandbox = any(entities)) as sandbox
from checked where $2::text is not null or not whole order by whole, project, source limit {MAX_SOURCES}
"""  # noqa: S608  # a constant statement
_GAPS: Final = f"""
with seen as (
    select e.sequence from unnest($3::text[]) as wanted (entity)
    join events e on e.entity = wanted.entity and e.project = $1 and event_source(e.source, e.entity) = $2
    union
    select generate_series(lower(part), upper(part) - 1) from event_summaries s, unnest(s.sequences) as part
    where s.entity = any($3::text[]) and s.project = $1 and s.source = $2
), gap as (
    select lag(sequence, 1, 0) over (order by sequence) + 1 as first, sequence - 1 as last from seen
)
select first, last, sum(last - first + 1) over ()::bigint as missing
from gap where first <= last order by first limit {MAX_GAPS}
"""  # noqa: S608  # a constant statement
# Stored and removed events. A removed event that is stored again, because its day was restored, counts once.
_KNOWN_EVENTS: Final = """
with removed as (
    select sum(events) as events, range_agg(sequences) as sequences from event_summaries
    where entity = any($3::text[]) and project = $1 and source = $2
)
select (count(e.id) filter (where coalesce(not e.sequence::bigint <@ r.sequences, true))
    + coalesce(max(r.events), 0))::bigint
from removed r left join (
    select e.id, e.sequence from unnest($3::text[]) as wanted (entity)
    join events e on e.entity = wanted.entity and e.project = $1 and event_source(e.source, e.entity) = $2
) e on true
"""
# Ended sandboxes whose source was not closed. A sandbox that never published has no source to close, unless the spawner
# found events that it could not publish (`unsaid`). Once they are recovered, the source has its closing event.
_INCOMPLETE: Final = f"""
select b.sandbox, count(*) over () as unsaid
from sandboxes b left join sources v
    on v.project = b.project and v.entity = b.sandbox and v.source = '{AGENT_SOURCE}' || b.sandbox
where b.state in ({", ".join(f"'{state.value}'" for state in sorted(SANDBOX_ENDED))})
    and ($1::text is null or b.project = $1) and ($2::text is null or b.sandbox = $2 or b.task = $2)
    and not coalesce(v.closing >= v.highest, b.unsaid is not true)
order by b.project, b.sandbox limit {MAX_INCOMPLETE}
"""  # noqa: S608  # a constant statement

_IS_KNOWN: Final = """
select exists (select from sandboxes where sandbox = $2 and ($1::text is null or project = $1))
    or exists (select from tasks where task = $2 and ($1::text is null or project = $1))
"""


@dataclass(frozen=True)
class AuditSnapshot:
    """What the database has about the requested sources at one moment."""

    sources: list[SourceAudit]
    totals: Any  # the row of `_TOTALS`
    missing: int
    conflicts: int
    unsaid: int
    unsaid_sandboxes: list[str]
    duplicates: int  # events that were refused because they were stored before
    known: bool
    """Whether anything is stored of the requested sandbox or task."""


async def audit_events(database: Database, bus: Bus, request: GetAudit, project: str, task_days: int = 0) -> Audit:
    """Whether all published events are stored. `unstored` and `dead` count the whole herd, as projects share streams.

    The stream is read before the database. So an event that was in the stream but not stored counts as unstored, and a
    gap counts as missing only if it is still there afterwards. Ended tasks stay for `task_days` days; 0 means forever.
    Raises `ContractError` if the broker or the database is unavailable, and (`not_found`) for a sandbox of which
    nothing is stored.
    """
    unstored = await count_unstored(bus)
    snapshot = await read_snapshot(database, request, project)
    if (snapshot.missing or snapshot.unsaid) and not unstored:
        # Batches are stored concurrently, so that a later one may be visible before an earlier one.
        snapshot = await read_snapshot(database, request, project)
    if request.sandbox and not snapshot.known:
        raise expired_error(request.sandbox, task_days, datetime.now(UTC)) or no_such_sandbox(request.sandbox)
    return Audit(
        sources=snapshot.sources,
        source_count=snapshot.totals["sources"],
        event_count=snapshot.totals["events"],
        missing=snapshot.missing,
        duplicates_refused=snapshot.duplicates,
        unstored=unstored,
        dead=await _count_dead_letters(bus),
        conflicts=snapshot.conflicts,
        implausible=snapshot.totals["implausible"],
        unsaid=snapshot.unsaid,
        unsaid_sandboxes=snapshot.unsaid_sandboxes,
    )


async def count_unstored(bus: Bus) -> int:
    """How many messages of the stream are not acknowledged. Raises `ContractError` if the broker is unavailable."""
    try:
        info = await bus.js.consumer_info(BY_CONSUMER[CONSUMER].stream, CONSUMER, timeout=2)
    except BROKER_ERRORS as error:
        raise broker_unavailable(error) from error
    return (info.num_pending or 0) + (info.num_ack_pending or 0)


async def count_missing(connection: Connection) -> int:
    """The number of missing events in all sources, computed from their numbers of events and highest sequences."""
    totals: Any = await connection.fetchrow(_TOTALS, None, None)
    missing: int = totals["missing"]
    return missing


async def _count_dead_letters(bus: Bus) -> int:
    try:
        return (await bus.js.stream_info("DEAD")).state.messages
    except BROKER_ERRORS as error:
        raise broker_unavailable(error) from error


async def read_snapshot(database: Database, request: GetAudit, project: str) -> AuditSnapshot:
    """What the database has about the requested sources. Raises `ContractError` when it is unavailable."""
    filters = project_filter(project), request.sandbox
    async with (
        database.reading(heavy=True) as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        totals: Any = await connection.fetchrow(_TOTALS, *filters)
        listed = await connection.fetch(_LISTED_SOURCES, *filters)
        audited = [await _audit_source(connection, row) for row in listed]
        unsaid = await connection.fetch(_INCOMPLETE, *filters)
        duplicates = await connection.fetchval(
            "select coalesce(sum(duplicates), 0)::bigint from refusals where $1::text is null or project = $1",
            filters[0],
        )
        known = totals["sources"] > 0 or await connection.fetchval(_IS_KNOWN, *filters)
    return AuditSnapshot(
        sources=audited,
        totals=totals,
        missing=_count_missing(totals["missing"], listed, audited),
        conflicts=_count_conflicts(totals["surplus"], listed, audited),
        unsaid=unsaid[0]["unsaid"] if unsaid else 0,
        unsaid_sandboxes=[row["sandbox"] for row in unsaid],
        duplicates=duplicates,
        known=known,
    )


def _count_missing(missing: int, listed: Sequence[Any], audited: Sequence[SourceAudit]) -> int:
    """The number of missing events. It is exact for the listed sources, and computed from counts for the others."""
    plausible_indexes = [index for index, row in enumerate(listed) if row["highest"] - row["stored"] <= MAX_MISSING]
    by_count: int = sum(max(listed[index]["highest"] - listed[index]["stored"], 0) for index in plausible_indexes)
    return missing - by_count + sum(audited[index].missing for index in plausible_indexes)


def _count_conflicts(surplus: int, listed: Sequence[Any], audited: Sequence[SourceAudit]) -> int:
    """The number of events whose sequence was used before: exact for the listed sources, as for missing events."""
    by_count: int = sum(max(row["stored"] - row["highest"], 0) for row in listed)
    return surplus - by_count + sum(source.conflicts for source in audited)


async def _audit_source(connection: Connection, row: Any) -> SourceAudit:
    gaps, missing = ([], 0) if row["whole"] else await _find_gaps(connection, row)
    source: str = row["source"]
    return SourceAudit(
        source=source,
        sandbox=source.removeprefix(AGENT_SOURCE) if source.startswith(AGENT_SOURCE) else row["sandbox"],
        stored=row["stored"],
        highest=row["highest"],
        missing=missing,
        gaps=[Gap(first=gap["first"], last=gap["last"]) for gap in gaps],
        closed=row["closing"] >= row["highest"],
        # Of the sequences up to the highest, all but the missing ones were used, and each should be used once.
        conflicts=row["stored"] - (row["highest"] - missing),
    )


async def _find_gaps(connection: Connection, row: Any) -> tuple[list[Any], int]:
    """The gaps of a source, and how many events are missing.

    If some of its days were dropped, no gaps are listed, and the number is computed from its counts.
    """
    query_values = row["project"], row["source"], row["entities"]
    if await connection.fetchval(_KNOWN_EVENTS, *query_values) < row["stored"]:
        return [], max(row["highest"] - row["stored"], 0)
    gaps = await connection.fetch(_GAPS, *query_values)
    return gaps, gaps[0]["missing"] if gaps else 0
