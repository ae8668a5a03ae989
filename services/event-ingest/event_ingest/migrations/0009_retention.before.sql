-- What must not be dropped, by order of an operator: all events of a project, or those of one of its tasks and of its
-- sandboxes. Taking a hold waits for a drop that has begun to decide, and no drop begins to decide while one is taken.
create table history_holds (
    project text collate "C" not null,
    task text collate "C" not null default '',
    reason text not null,
    held_by text,
    held_at timestamptz not null default now(),
    primary key (project, task)
);

comment on column history_holds.task is 'empty: all events of the project';

-- Events whose ids are of no day are deleted by the time at which they were stored.
create index events_default_stored on events_default (stored_at);
