-- What agents ask leave for, and what came of it. What a tool is to be called with stays in the agent's own event.
create table approvals (
    project text collate "C" not null,
    sandbox text collate "C" not null,
    approval text collate "C" not null,
    state text not null,
    state_sequence integer not null,
    state_at timestamptz not null,
    tool text,
    reason text,
    requested_at timestamptz,
    expires_at timestamptz,
    on_timeout text,
    asked_in uuid,
    answer text collate "C",
    decided_by text,
    decision_reason text,
    outcome text,
    primary key (project, sandbox, approval)
) with (fillfactor = 70);

create index approvals_newest on approvals (project, requested_at, sandbox, approval);

-- Few of many wait, and they are what is asked for most.
create index approvals_waiting on approvals (project, requested_at, sandbox, approval) where state = 'pending';
