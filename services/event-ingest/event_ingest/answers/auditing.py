"""`audit`: is anything missing?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import nats.errors
import nats.js.errors

from event_ingest.answers.paging import scope
from event_ingest.answers.reaching import broker_away
from event_ingest.database import Connection, Database
from event_ingest.ingest import CONSUMER
from sandherd.bus.connection import Bus
from sandherd.contracts.reading import AGENT_SOURCE
from sandherd.contracts.requests import AskAudit, Audit, Gap, SourceAudit
from sandherd.contracts.states import SANDBOX_ENDED
from sandherd.contracts.streams import BY_CONSUMER

MOST_SOURCES: Final = 200
"""Of those with gaps, so many are looked at number by number."""
MOST_GAPS: Final = 100
MOST_MISSING: Final = 1_000_000
"""A source that lacks more than this has not lost it: nobody says so much. It would drown what others have lost."""
MOST_UNSAID: Final = 100

# A source is whole when it has as many events as its highest number says, and their numbers add up to what 1, 2, 3 …
# up to it do: the sum shows a number that was used twice beside one that is missing.
_VOICES: Final = """
with voice as (
    select project, source, array_agg(entity) as entities, sum(stored)::bigint as stored, max(highest) as highest,
        sum(sequence_sum)::numeric as total, max(closing) as closing
    from sources
    where ($1::text is null or project = $1)
        and ($2::text is null or (project, source) in (
            select s.project, s.source from sources s
            where s.entity = $2 or (s.project, s.entity) in (
                select b.project, b.task from sandboxes b where b.sandbox = $2 and b.task is not null)))
    group by project, source
    having $2::text is null or bool_and(
        entity = $2 or (project, entity) in (
            select b.project, b.task from sandboxes b where b.sandbox = $2 and b.task is not null))
), judged as (
    select *, stored = highest and total = highest::numeric * (highest + 1) / 2 as whole from voice
)
"""
_TOTALS: Final = f"""
{_VOICES}
select count(*) as sources, coalesce(sum(stored), 0)::bigint as events,
    coalesce(sum(highest - stored) filter (where highest - stored between 1 and {MOST_MISSING}), 0)::bigint as lacking,
    count(*) filter (where highest - stored > {MOST_MISSING}) as implausible,
    coalesce(sum(stored - highest) filter (where stored > highest), 0)::bigint as surplus
from judged
"""  # noqa: S608  # a statement of ours
_SHOWN: Final = f"""
{_VOICES}
select project, source, entities, stored, highest, closing, whole,
    (select min(b.sandbox) from sandboxes b where b.project = judged.project and b.sandbox = any(entities)) as sandbox
from judged where $2::text is not null or not whole order by whole, project, source limit {MOST_SOURCES}
"""  # noqa: S608  # a statement of ours
_GAPS: Final = f"""
with seen as (
    select distinct e.sequence from unnest($3::text[]) as spoken (entity)
    join events e on e.entity = spoken.entity and e.project = $1 and e.source = $2
), gap as (
    select lag(sequence, 1, 0) over (order by sequence) + 1 as first, sequence - 1 as last from seen
)
select first, last, sum(last - first + 1) over ()::bigint as missing
from gap where first <= last order by first limit {MOST_GAPS}
"""  # noqa: S608  # a statement of ours
# A sandbox that never spoke has nothing to close, unless the spawner found something that it could not say. One that
# was recovered later has its last word, and is no longer among them.
_UNSAID: Final = f"""
select b.sandbox, count(*) over () as unsaid
from sandboxes b left join sources v
    on v.project = b.project and v.entity = b.sandbox and v.source = '{AGENT_SOURCE}' || b.sandbox
where b.state in ({", ".join(f"'{state.value}'" for state in sorted(SANDBOX_ENDED))})
    and ($1::text is null or b.project = $1) and ($2::text is null or b.sandbox = $2)
    and not coalesce(v.closing >= v.highest, b.unsaid is not true)
order by b.project, b.sandbox limit {MOST_UNSAID}
"""  # noqa: S608  # a statement of ours


@dataclass(frozen=True)
class _Look:
    """What the database says at one moment."""

    sources: list[SourceAudit]
    totals: Any
    missing: int
    conflicts: int
    unsaid: int
    unsaid_sandboxes: list[str]
    duplicates: int


async def answer_audit(database: Database, bus: Bus, question: AskAudit, project: str) -> Audit:
    """Whether all that was said is kept. `unstored` and `dead` are of the whole herd: the streams are shared.

    The stream is asked before the database. So what was in the stream and not stored counts as unstored, and a gap is
    missing only if it is still there afterwards. Raises `ContractError` when one of the two is away.
    """
    unstored = await count_unstored(bus)
    look = await _look(database, question, project)
    if (look.missing or look.unsaid) and not unstored:
        # Batches are stored side by side, so that a later one may be seen before an earlier one.
        look = await _look(database, question, project)
    return Audit(
        sources=look.sources,
        source_count=look.totals["sources"],
        event_count=look.totals["events"],
        missing=look.missing,
        duplicates_refused=look.duplicates,
        unstored=unstored,
        dead=await _count_dead(bus),
        conflicts=look.conflicts,
        implausible=look.totals["implausible"],
        unsaid=look.unsaid,
        unsaid_sandboxes=look.unsaid_sandboxes,
    )


async def count_unstored(bus: Bus) -> int:
    """What the stream holds for us that we have not acknowledged. Raises `ContractError` when the broker is away."""
    try:
        info = await bus.js.consumer_info(BY_CONSUMER[CONSUMER].stream, CONSUMER, timeout=2)
    except (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError) as error:
        raise broker_away(error) from error
    return (info.num_pending or 0) + (info.num_ack_pending or 0)


async def count_lacking(connection: Connection) -> int:
    """How many events are missing in all, by the highest numbers of their sources."""
    totals: Any = await connection.fetchrow(_TOTALS, None, None)
    lacking: int = totals["lacking"]
    return lacking


async def _count_dead(bus: Bus) -> int:
    try:
        return (await bus.js.stream_info("DEAD")).state.messages
    except (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError) as error:
        raise broker_away(error) from error


async def _look(database: Database, question: AskAudit, project: str) -> _Look:
    bound = scope(project), question.sandbox
    async with (
        database.reading(heavy=True) as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        totals: Any = await connection.fetchrow(_TOTALS, *bound)
        shown = await connection.fetch(_SHOWN, *bound)
        judged = [await _judge(connection, row) for row in shown]
        unsaid = await connection.fetch(_UNSAID, *bound)
        duplicates = await connection.fetchval(
            "select coalesce(sum(duplicates), 0)::bigint from refusals where $1::text is null or project = $1", bound[0]
        )
    return _Look(
        sources=judged,
        totals=totals,
        missing=_missing(totals["lacking"], shown, judged),
        conflicts=_conflicts(totals["surplus"], shown, judged),
        unsaid=unsaid[0]["unsaid"] if unsaid else 0,
        unsaid_sandboxes=[row["sandbox"] for row in unsaid],
        duplicates=duplicates,
    )


def _missing(lacking: int, shown: Sequence[Any], judged: Sequence[SourceAudit]) -> int:
    """Exact for the sources that were looked at number by number, and by their counts for the rest."""
    plausible = [place for place, row in enumerate(shown) if row["highest"] - row["stored"] <= MOST_MISSING]
    counted: int = sum(max(shown[place]["highest"] - shown[place]["stored"], 0) for place in plausible)
    return lacking - counted + sum(judged[place].missing for place in plausible)


def _conflicts(surplus: int, shown: Sequence[Any], judged: Sequence[SourceAudit]) -> int:
    """The same for numbers that were used more than once."""
    counted: int = sum(max(row["stored"] - row["highest"], 0) for row in shown)
    return surplus - counted + sum(source.conflicts for source in judged)


async def _judge(connection: Connection, row: Any) -> SourceAudit:
    gaps = [] if row["whole"] else await connection.fetch(_GAPS, row["project"], row["source"], row["entities"])
    source: str = row["source"]
    missing: int = gaps[0]["missing"] if gaps else 0
    return SourceAudit(
        source=source,
        sandbox=source.removeprefix(AGENT_SOURCE) if source.startswith(AGENT_SOURCE) else row["sandbox"],
        stored=row["stored"],
        highest=row["highest"],
        missing=missing,
        gaps=[Gap(first=gap["first"], last=gap["last"]) for gap in gaps],
        closed=row["closing"] >= row["highest"],
        # Of the numbers up to the highest, all but the missing ones were used, and each once is right.
        conflicts=row["stored"] - (row["highest"] - missing),
    )
