-- Days that could not be archived, and so are not dropped, with the reason of the last try.
create table history_archive_problems (
    day date not null primary key,
    problem text not null,
    since timestamptz not null default now()
);

-- Days that are to be loaded from the archive, or were, by order of an operator: they are not dropped before `until`.
create table history_restores (
    day date not null,
    project text collate "C" not null default '',
    until timestamptz not null,
    restored_by text,
    requested_at timestamptz not null default now(),
    done_at timestamptz,
    events bigint not null default 0,
    problem text,
    primary key (day, project)
);

comment on column history_restores.project is 'empty: all projects that the archive has of the day';
comment on column history_restores.problem is 'why it could not be restored: it is not tried again until it is requested';
