"""The statement that computes the totals of sources again, from events and from summaries of removed events."""

from typing import Final

from event_ingest.batch_statements import TOTALS
from sandherd.contracts.events.agent import AgentHeartbeat

RECOUNT: Final = f"""
with removed as (
    select project, source, entity, sum(events)::bigint as events, range_agg(sequences) as sequences,
        sum(sequence_sum)::bigint as sequence_sum, max(last_at) as last_at,
        coalesce(sum(events) filter (where type = '{AgentHeartbeat.type}'), 0)::bigint as heartbeats,
        min(first_at) filter (where type = '{AgentHeartbeat.type}') as first_heartbeat,
        max(last_at) filter (where type = '{AgentHeartbeat.type}') as last_heartbeat
    from event_summaries where project = $1 and entity = $2 group by project, source, entity
), counted (project, source, entity, stored, highest, sequence_sum, closing, last_at, heartbeats,
    first_heartbeat, last_heartbeat) as (
    select {TOTALS} from events e where project || '' = $1 and entity = $2 and not exists (
        select from removed r where r.source = event_source(e.source, e.entity) and e.sequence::bigint <@ r.sequences)
    group by 1, 2, 3
)
insert into sources as s
select $1, source, $2, coalesce(c.stored, 0) + coalesce(r.events, 0),
    greatest(c.highest, (upper(r.sequences) - 1)::integer), coalesce(c.sequence_sum, 0) + coalesce(r.sequence_sum, 0),
    coalesce(c.closing, 0), greatest(c.last_at, r.last_at), coalesce(c.heartbeats, 0) + coalesce(r.heartbeats, 0),
    least(c.first_heartbeat, r.first_heartbeat), greatest(c.last_heartbeat, r.last_heartbeat)
from counted c full join removed r using (project, source, entity)
on conflict (project, source, entity) do update set
    (stored, highest, sequence_sum, closing, last_at, heartbeats, first_heartbeat, last_heartbeat) =
    (excluded.stored, excluded.highest, excluded.sequence_sum, excluded.closing, excluded.last_at,
        excluded.heartbeats, excluded.first_heartbeat, excluded.last_heartbeat)
"""  # noqa: S608  # constant names, no values
"""Compute the totals of an entity's sources again. All of its events must be stored, or have a summary."""
