-- A role for Grafana's data source: it reads the tables of the history, and can do nothing else. It reads what
-- agents and users have written, so every user who may open the dashboard "One sandbox" sees that, too.
-- As the database's owner, as often as one likes: psql "$DATABASE_URL" -f deploy/grafana/reader.sql
-- Then give it a password: \password sandherd_reader
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
