-- A role for Grafana's data source, which can only read the tables of the history. These contain texts of agents and
-- users, so every user who may open the dashboard "One sandbox" can read them.
-- Run it as the database's owner; it may be repeated: psql "$DATABASE_URL" -f deploy/grafana/reader.sql
-- Then set a password for the role: \password sandherd_reader
do $$
begin
    if not exists (select from pg_roles where rolname = 'sandherd_reader') then
        create role sandherd_reader login;
    end if;
end
$$;

alter role sandherd_reader set default_transaction_read_only = on;
alter role sandherd_reader set statement_timeout = '15s';
grant select on sandboxes, tasks, messages, approvals, sources, events to sandherd_reader;
