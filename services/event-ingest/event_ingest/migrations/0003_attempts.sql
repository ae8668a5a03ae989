-- What tasks wait for and how often they are tried, and how long sandboxes may live.
alter table tasks
    add column priority text,
    add column deadline timestamptz,
    add column depends_on json,
    add column max_attempts integer,
    add column profile text,
    add column not_before timestamptz,
    -- Of the last retry: what was said of a sandbox or of a start before that is of another attempt.
    add column retried_sequence integer not null default 0;

alter table sandboxes
    add column expires_at timestamptz,
    add column expires_sequence integer not null default 0,
    add column profile text,
    add column warm boolean;
