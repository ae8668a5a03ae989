-- Days whose partition was replaced by one without expired events: of these types, and of these projects.
create table history_reductions (
    day date not null primary key,
    types text[] not null,
    projects text[] not null,
    removed bigint not null,
    reduced_at timestamptz not null default now()
);

-- What is known of the events that were removed by their type: with it `audit`, `verify` and `rebuild` find nothing
-- missing, and an event that is delivered again is found out. Each day is a partition, which is dropped with its day.
create table event_summaries (
    day date not null,
    project text collate "C" not null,
    source text collate "C" not null,
    entity text collate "C" not null,
    type text collate "C" not null,
    events bigint not null,
    sequences int8multirange not null,
    sequence_sum bigint not null,
    first_at timestamptz not null,
    last_at timestamptz not null,
    largest_gap interval not null,
    stored_until timestamptz not null,
    primary key (day, project, source, entity, type)
) partition by list (day);

create index event_summaries_of_entity on event_summaries (entity, project);

comment on column event_summaries.sequences is 'the sequences of the removed events';
comment on column event_summaries.largest_gap is 'between two of them; an upper limit if some were stored late';
comment on column event_summaries.stored_until is 'when the last of them was stored; a later one was stored again';

create view sandherd_v1.event_summaries with (security_barrier) as
select project, entity as sandbox_id, day, type as event_type, source, events as event_count,
    first_at as first_created_at, last_at as last_created_at, largest_gap
from event_summaries
where project = any (array(select v.project from visible_projects v)) and entity ^@ 'sbx-';

-- Ended tasks and sandboxes are found by their end, to be deleted.
create index tasks_ended on tasks (state_at) where state in ('completed', 'failed', 'cancelled');
create index sandboxes_ended on sandboxes (state_at) where state in ('terminated', 'failed');

alter table artifacts add column over_limit boolean not null default false;
comment on column artifacts.over_limit is 'it waits, as its project has its maximum in the artifact store';
