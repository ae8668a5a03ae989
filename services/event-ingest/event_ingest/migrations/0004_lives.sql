-- Names of tasks come again. Which task of its name a row is of: the command that began it, which orders by time.
alter table tasks add column life text collate "C" not null default '';

update tasks t set life = coalesce((
    select max(substring(e.source from '/([0-9a-f]{32})$') collate "C") from events e
    where e.entity = t.task and e.project = t.project and e.type = 'task.submitted'), '');
