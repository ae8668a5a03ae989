-- The words of an event that is searched, as `event_ingest.search_texts` has them. Where a day is over,
-- `event_ingest.partition_indexes` creates an index of them: while events are stored it would take three times as long as
-- all else. It is stored in an index, so it never changes and never fails: `json` may have a character that a text can't, from before that was refused. The functions
-- are the quickest that were measured: the parser of `to_tsvector` takes twice as long, and `translate` ten times.
create function event_terms(type text, envelope json) returns text[]
language plpgsql immutable parallel safe cost 1000 as $$
declare
    found text;
    terms text[];
begin
    if strpos(envelope::text, '\u0000') > 0 then
        return array[]::text[];
    end if;
    case
        when type = 'agent.tool_result' then
            found := envelope #>> '{data,result}';
        when type = 'agent.tool_use' then
            found := envelope #>> '{data,tool}';
            if json_typeof(envelope #> '{data,input}') = 'object' then
                found := concat(found, ' ',
                    (select string_agg(value, ' ') from json_each_text(envelope #> '{data,input}')));
            end if;
        when type = 'agent.file_edited' then
            found := concat(envelope #>> '{data,file_path}', ' ',
                coalesce(nullif(envelope #>> '{data,full_diff}', ''), envelope #>> '{data,diff_preview}'));
        when type in ('agent.error', 'agent.stream_error', 'agent.failed') then
            found := envelope #>> '{data,error}';
        when type = 'agent.completed' then
            found := envelope #>> '{data,final_output}';
        when type = 'task.submitted' then
            found := envelope #>> '{data,task}';
        else
            found := envelope #>> '{data,content}';
    end case;
    found := lower(left(coalesce(found, ''), 32768));
    if strpos(found, E'\x1b') > 0 then
        found := regexp_replace(found, E'\x1b\\[[0-9;]*m|[[:cntrl:]]', ' ', 'g');
    end if;
    found := replace(replace(replace(replace(replace(replace(replace(replace(found, '!', ' '), '"', ' '), '#', ' ')
        , '$', ' '), '%', ' '), '&', ' '), '''', ' '), '(', ' ');
    found := replace(replace(replace(replace(replace(replace(replace(replace(found, ')', ' '), '*', ' '), '+', ' ')
        , ',', ' '), '-', ' '), '.', ' '), '/', ' '), ':', ' ');
    found := replace(replace(replace(replace(replace(replace(replace(replace(found, ';', ' '), '<', ' '), '=', ' ')
        , '>', ' '), '?', ' '), '@', ' '), '[', ' '), '\', ' ');
    found := replace(replace(replace(replace(replace(replace(replace(replace(found, ']', ' '), '^', ' '), '_', ' ')
        , '`', ' '), '{', ' '), '|', ' '), '}', ' '), '~', ' ');
    found := replace(replace(replace(replace(replace(replace(replace(replace(found, E'\n', ' '), E'\t', ' ')
        , E'\r', ' '), U&'\00A0', ' '), '“', ' '), '”', ' '), '‘', ' '), '’', ' ');
    found := replace(replace(replace(replace(replace(found, '—', ' '), '–', ' '), '…', ' '), '«', ' '), '»', ' ');
    terms := array_remove(string_to_array(found, ' '), '');
    if length(found) > 400 then  -- else no word is too long for an index
        terms := array(select left(word, 200) from unnest(terms) as word);
    end if;
    return terms;
end
$$;

-- They, with the project, the entity and the kind of text as words of their own: no other word has a space. Its body is
-- parsed now, as indexes are created, restored and analyzed without a search path.
create function event_words(project text, entity text, type text, envelope json) returns tsvector
language sql immutable parallel safe cost 2000
return array_to_tsvector(event_terms(type, envelope) || array['p ' || project, 'e ' || entity, case
    when type = 'agent.tool_use' then 'k command'
    when type = 'agent.file_edited' then 'k diff'
    when type in ('agent.tool_result', 'agent.error', 'agent.stream_error', 'agent.failed', 'agent.completed')
        then 'k output'
    else 'k message' end]);
