-- Views for SQL: their columns never change within a version (`event_ingest.views` describes them). Each shows the rows
-- of the projects that the current role may read. They are security barriers: a function or operator of a reader's own
-- sees no row of another project. Policies on the tables would not do: they are not applied to a partition that is read
-- directly, would need rights on the tables, and concern a service that does not own them.
create table history_readers (
    role text collate "C" not null,
    project text collate "C" not null,
    primary key (role, project)
);

-- The owner of the tables may read all projects; `sources` has each, and its key is skipped from one to the next.
create view visible_projects with (security_barrier) as
select r.project from history_readers r where r.role = current_user::text
union all
select k.project from (
    with recursive known (project) as (
        (select project from sources order by project limit 1)
        union all
        select (select s.project from sources s where s.project > known.project order by s.project limit 1)
        from known where known.project is not null
    ) select project from known where project is not null
) k where pg_has_role(current_user, (select relowner from pg_class where oid = 'events'::regclass), 'usage');

-- What the views `files` and `interventions` read. Where there are events, `event_ingest.partition_indexes` creates the
-- index of each partition.
do $$ begin
    if exists (select from events) then
        create index events_of_views on only events (project, type, time)
        where type in ('agent.file_edited', 'monitor.intervention_decided', 'monitor.intervention_outcome');
    else
        create index events_of_views on events (project, type, time)
        where type in ('agent.file_edited', 'monitor.intervention_decided', 'monitor.intervention_outcome');
    end if;
end $$;

-- It may be there from before: an emptied database is migrated anew.
create schema if not exists sandherd_v1;

-- The first id of a time: `id >= first_id(…)` reads only the partitions of the days since then.
create or replace function sandherd_v1.first_id(at timestamptz) returns uuid
language sql immutable strict parallel safe
return encode(substring(int8send(greatest(floor(extract(epoch from at) * 1000), 0)::bigint) from 3)
    || '\x00000000000000000000'::bytea, 'hex')::uuid;

create view sandherd_v1.sandbox_events with (security_barrier) as
select id, project, entity as sandbox_id, type as event_type, envelope -> 'data' as event_data,
    source, sequence, stream_sequence, size, time as created_at, stored_at
from events
where project = any (array(select v.project from visible_projects v)) and entity ^@ 'sbx-';

create view sandherd_v1.tasks with (security_barrier) as
select project, task as task_id, state, state_at, attempt, max_attempts, priority, sandbox as sandbox_id,
    text, harness, runtime, profile, labels, depends_on, submitted_at, started_at, deadline,
    case when state in ('completed', 'failed', 'cancelled') then state_at end as ended_at, result, error, error_type
from tasks
where project = any (array(select v.project from visible_projects v)) and state <> '';

create view sandherd_v1.sandboxes with (security_barrier) as
select project, sandbox as sandbox_id, task as task_id, attempt, state, state_at, runtime, isolation,
    profile, warm, requested_at, running_at, expires_at,
    case when state in ('terminated', 'failed') then state_at end as ended_at, reason, error
from sandboxes
where project = any (array(select v.project from visible_projects v)) and state is not null and requested_at is not null;

create view sandherd_v1.messages with (security_barrier) as
select project, message as message_id, sandbox as sandbox_id, message_type, state, state_at, sender_id,
    correlation_id, queued_at, reason
from messages
where project = any (array(select v.project from visible_projects v));

create view sandherd_v1.interventions with (security_barrier) as
select d.id, d.project, d.entity as sandbox_id, d.data ->> 'rule' as rule, d.data ->> 'step' as step,
    case when d.data ->> 'intervention_number' ~ '^[0-9]{1,18}$'
        then (d.data ->> 'intervention_number')::bigint end as intervention_number,
    d.data ->> 'message' as message, d.data ->> 'message_id' as message_id,
    d.data ->> 'correlation_id' as correlation_id, d.data ->> 'approval_id' as approval_id, d.time as created_at,
    o.data ->> 'outcome' as outcome, o.data ->> 'recovered' = 'true' as recovered, o.time as outcome_at
from (
    select e.id, e.project, e.entity, e.time, e.envelope -> 'data' as data
    from events e
    where e.project = any (array(select v.project from visible_projects v))
        and e.type = 'monitor.intervention_decided'
) d left join (
    select distinct on (e.project, e.entity, e.envelope #>> '{data,correlation_id}')
        e.project, e.entity, e.envelope #>> '{data,correlation_id}' as correlation_id, e.time, e.envelope -> 'data' as data
    from events e
    where e.project = any (array(select v.project from visible_projects v))
        and e.type = 'monitor.intervention_outcome'
    order by e.project, e.entity, e.envelope #>> '{data,correlation_id}', e.stream_sequence desc
) o on o.project = d.project and o.entity = d.entity and o.correlation_id = d.data ->> 'correlation_id';

-- Numbers are what a sandbox published: one that is written in another way than as digits is null, and not an error.
create view sandherd_v1.files with (security_barrier) as
select e.id, e.project, e.entity as sandbox_id, e.data ->> 'file_path' as file_path,
    e.data ->> 'change_type' as change_type, e.data ->> 'previous_path' as previous_path,
    coalesce(e.data ->> 'binary' = 'true', false) as is_binary,
    case when e.data ->> 'lines_added' ~ '^[0-9]{1,18}$' then (e.data ->> 'lines_added')::bigint end as lines_added,
    case when e.data ->> 'lines_removed' ~ '^[0-9]{1,18}$' then (e.data ->> 'lines_removed')::bigint end as lines_removed,
    e.data ->> 'content_sha256' as content_sha256,
    coalesce(nullif(e.data ->> 'full_diff', ''), e.data ->> 'diff_preview') as diff,
    case when e.data ->> 'turn' ~ '^[0-9]{1,18}$' then (e.data ->> 'turn')::bigint end as turn,
    e.data ->> 'tool_use_id' as tool_use_id, e.time as created_at
from (
    select id, project, entity, time, envelope -> 'data' as data from events
    where project = any (array(select v.project from visible_projects v)) and type = 'agent.file_edited'
) e;

create view sandherd_v1.usage with (security_barrier) as
select e.id, e.project, e.entity as sandbox_id, e.data ->> 'model' as model,
    case when e.data ->> 'turn' ~ '^[0-9]{1,18}$' then (e.data ->> 'turn')::bigint end as turn,
    case when e.data ->> 'input_tokens' ~ '^[0-9]{1,18}$' then (e.data ->> 'input_tokens')::bigint end as input_tokens,
    case when e.data ->> 'output_tokens' ~ '^[0-9]{1,18}$' then (e.data ->> 'output_tokens')::bigint end as output_tokens,
    case when e.data ->> 'cache_read_tokens' ~ '^[0-9]{1,18}$'
        then (e.data ->> 'cache_read_tokens')::bigint end as cache_read_tokens,
    case when e.data ->> 'cache_write_tokens' ~ '^[0-9]{1,18}$'
        then (e.data ->> 'cache_write_tokens')::bigint end as cache_write_tokens,
    case when e.data ->> 'cost_micro_usd' ~ '^[0-9]{1,18}$'
        then (e.data ->> 'cost_micro_usd')::bigint end as cost_micro_usd,
    e.time as created_at
from (
    select id, project, entity, time, envelope -> 'data' as data from events
    where project = any (array(select v.project from visible_projects v)) and type = 'agent.usage'
) e;
