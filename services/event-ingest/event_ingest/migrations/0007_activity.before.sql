-- How many events arrive each minute, and what they cost, for charts: the clock is that of the database. A row of its own
-- for each connection, so that batches that are stored at the same time do not wait for each other.
create table event_rates (
    project text collate "C" not null,
    minute timestamptz not null,
    writer smallint not null,
    events bigint not null,
    turns bigint not null,
    tool_calls bigint not null,
    errors bigint not null,
    cost_micro_usd bigint not null,
    primary key (project, minute, writer)
) with (fillfactor = 70);

-- What has not ended is counted by state, among many that have.
create index tasks_unfinished on tasks (project, state) where state in ('pending', 'assigned', 'running');
create index sandboxes_unfinished on sandboxes (project, state) where state not in ('terminated', 'failed');

-- What agents do, to count it. Where there are events, `event_ingest.partition_indexes` creates the index of each
-- partition without blocking its writers, and the whole one is valid after the last of them.
do $$ begin
    if exists (select from events) then
        create index events_of_activity on only events (project, time) include (entity, type)
        where type in ('agent.turn_started', 'agent.tool_use', 'agent.error', 'agent.stream_error',
            'agent.iteration_failed', 'agent.failed');
    else
        create index events_of_activity on events (project, time) include (entity, type)
        where type in ('agent.turn_started', 'agent.tool_use', 'agent.error', 'agent.stream_error',
            'agent.iteration_failed', 'agent.failed');
    end if;
end $$;
