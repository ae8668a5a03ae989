-- Every event, as it was said. Its id is a UUIDv7, so that ranges of ids are ranges of time and the primary key alone
-- keeps an id unique over all days. The document is `json`, not `jsonb`: it is given back to the letter, it takes
-- `\u0000`, and storing it was measured to cost a third less.
create table events (
    id uuid not null primary key,
    stream_sequence bigint not null,
    sequence integer not null,
    size integer not null,
    time timestamptz not null,
    stored_at timestamptz not null default now(),
    project text collate "C" not null,
    entity text collate "C" not null,
    type text collate "C" not null,
    source text collate "C" not null,
    taskid text collate "C",
    sandboxid text collate "C",
    envelope json not null
) partition by range (id);

comment on column events.taskid is 'as said; an agent''s word is not trusted: the task of a sandbox is in sandboxes';

-- Ids that belong to no day that is kept ready: made elsewhere, or by a clock that is wrong.
create table events_default partition of events default;

create index events_of_entity on events (entity, stream_sequence);
create index events_of_project on events (project, stream_sequence);

-- What is known of each voice, and of whom it spoke: cheap to ask, where counting events is not.
-- `sequence_sum` shows a number that was used twice beside one that is missing.
create table sources (
    project text collate "C" not null,
    source text collate "C" not null,
    entity text collate "C" not null,
    stored bigint not null,
    highest integer not null,
    sequence_sum bigint not null,
    closing integer not null,
    last_at timestamptz not null,
    heartbeats bigint not null,
    first_heartbeat timestamptz,
    last_heartbeat timestamptz,
    primary key (project, source, entity)
) with (fillfactor = 70);

create index sources_of_entity on sources (entity, project);

create table refusals (
    project text collate "C" not null primary key,
    duplicates bigint not null
);

-- The read tables. Each part of a row is the word of the event with the highest number that speaks of it, so that
-- the order in which events are stored does not matter.
create table tasks (
    project text collate "C" not null,
    task text collate "C" not null,
    state text not null,
    state_sequence integer not null,
    state_at timestamptz not null,
    attempt integer not null,
    error text,
    error_type text,
    result json,
    text text,
    harness text,
    runtime text,
    submitted_at timestamptz not null,
    sandbox text collate "C",
    sandbox_sequence integer not null,
    started_at timestamptz,
    started_sequence integer not null,
    primary key (project, task)
) with (fillfactor = 70);

create index tasks_newest on tasks (project, submitted_at, task);

create table sandboxes (
    project text collate "C" not null,
    sandbox text collate "C" not null,
    state text,
    state_sequence integer not null,
    state_at timestamptz,
    runtime text,
    reason text,
    error text,
    task text collate "C",
    attempt integer not null,
    isolation text,
    requested_at timestamptz,
    running_at timestamptz,
    primary key (project, sandbox)
) with (fillfactor = 70);

create index sandboxes_newest on sandboxes (project, requested_at, sandbox);
create index sandboxes_of_task on sandboxes (project, task);

create table messages (
    project text collate "C" not null,
    message text collate "C" not null,
    sandbox text collate "C" not null,
    state text not null,
    state_sequence integer not null,
    state_at timestamptz not null,
    reason text,
    message_type text not null,
    sender_id text,
    correlation_id text,
    queued_at timestamptz,
    primary key (project, message)
) with (fillfactor = 70);

create index messages_of_sandbox on messages (project, sandbox);
