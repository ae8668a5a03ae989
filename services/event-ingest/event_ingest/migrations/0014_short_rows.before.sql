-- Rows without what their other columns have: `event_ingest.short_rows` writes them once no service of the previous
-- version runs, which would misread them (`0015_short_rows.after.sql`). From here on these functions read both forms.
create function event_source(source text, entity text) returns text
language sql immutable parallel safe
return case source when '' then '/sandherd/sandbox/' || entity else source end;

create function event_task(taskid text) returns text
language sql immutable parallel safe
return nullif(taskid, '');

create function event_sandbox(source text, sandboxid text, entity text) returns text
language sql immutable parallel safe
return case source when '' then entity else sandboxid end;

-- The event as it was published, to the letter. A document that is whole has the size of the event, and no other has.
create function event_document(event events) returns text
language sql stable parallel safe
return case
    when octet_length(event.envelope::text) = event.size
        or not (event.envelope::text ^@ '{"data":' or event.envelope::text ^@ '{"traceparent":"')
        then event.envelope::text
    else '{"specversion":"1.0","id":"' || event.id::text
        || '","source":"' || event_source(event.source, event.entity)
        || '","type":"' || event.type || '","subject":"' || event.entity
        || '","time":"' || to_char(event.time at time zone 'UTC', case event.time when date_trunc('second', event.time)
            then 'YYYY-MM-DD"T"HH24:MI:SS"Z"' else 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"' end)
        || '","datacontenttype":"application/json","dataschema":"urn:sandherd:v1:' || event.type
        || '","sequence":' || event.sequence::text || ','
        || case when event.envelope::text ^@ '{"traceparent":"' then substr(event.envelope::text, 2, 72) else '' end
        || '"project":"' || event.project || '",'
        || coalesce('"taskid":"' || event_task(event.taskid) || '",', '')
        || coalesce('"sandboxid":"' || event_sandbox(event.source, event.sandboxid, event.entity) || '",', '')
        || substr(event.envelope::text, case when event.envelope::text ^@ '{"traceparent":"' then 74 else 2 end)
    end;

comment on column events.envelope is
    'the event, or of it only data and traceparent: event_document(events) returns the event to the letter';
comment on column events.source is 'empty: that of the sandbox that entity names; event_source(source, entity) returns it';

create or replace view sandherd_v1.sandbox_events with (security_barrier) as
select id, project, entity as sandbox_id, type as event_type, envelope -> 'data' as event_data,
    event_source(source, entity) as source, sequence, stream_sequence, size, time as created_at, stored_at
from events
where project = any (array(select v.project from visible_projects v)) and entity ^@ 'sbx-';
