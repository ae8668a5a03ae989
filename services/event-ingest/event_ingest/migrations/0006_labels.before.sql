-- Labels of tasks, to find tasks by; and the usage that agents report, to add up what was spent.
alter table tasks add column labels jsonb;

create index tasks_of_label on tasks using gin (labels jsonb_path_ops);

create index events_of_usage on events (project, time) where type = 'agent.usage';
