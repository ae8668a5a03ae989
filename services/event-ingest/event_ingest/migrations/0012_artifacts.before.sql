-- Artifacts that events refer to, each with the day of its last event: with that, it may be removed.
create table artifacts (
    project text collate "C" not null,
    owner text collate "C" not null,
    artifact text collate "C" not null,
    sha256 text collate "C" not null,
    size bigint not null,
    chunks integer not null,
    day date not null,
    referred_at timestamptz not null default now(),
    stored_at timestamptz,
    lost boolean not null default false,
    archived boolean not null default false,
    problem text,
    next_try_at timestamptz not null default now(),
    primary key (project, owner, artifact, sha256)
);

create index artifacts_waiting on artifacts (next_try_at) where stored_at is null and not lost;
create index artifacts_by_content on artifacts (project, sha256);
create index artifacts_by_day on artifacts (day);

-- Contents in the artifact store: one for all artifacts of a project that have it.
create table artifact_contents (
    project text collate "C" not null,
    sha256 text collate "C" not null,
    size bigint not null,
    bytes bigint not null,
    encrypted boolean not null,
    stored_at timestamptz not null default now(),
    primary key (project, sha256)
);

comment on column artifacts.owner is 'the sandbox or task whose subject the chunks were published to';
comment on column artifacts.archived is 'its events were archived when their day was dropped: it is not removed';
comment on column artifacts.lost is 'its chunks were incomplete or had another digest, finally';
comment on column artifact_contents.bytes is 'as stored, encrypted or not';
